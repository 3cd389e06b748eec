"""Small runs: their configuration, and what can be read of them afterwards."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import yaml

from jaxpipe.checkpoint import array_files
from jaxpipe.checkpoint.manifest import Manifest, read_manifest
from jaxpipe.config import Config, from_yaml
from jaxpipe.training.trainer import train

BASE = """
model: {vocab_size: 257, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2, max_position_embeddings: 32}
data: {sequence_length: 16}
mesh: {pp: 4}
pipeline: {num_microbatches: 4}
train: {num_steps: 5, global_batch_size: 8}
optimizer: {learning_rate: 0.01, warmup_steps: 2, decay_steps: 12, max_grad_norm: 0.5}
"""


def make_run(directory: Path, text: str, **changes) -> Config:
    """BASE on that text, with ``section__key=value`` changed, in that run directory."""
    values = yaml.safe_load(BASE)
    values["data"]["path"] = text
    values["data"]["validation_fraction"] = 0.2
    values["run"] = {"dir": str(directory)}
    for key, value in changes.items():
        section, field = key.split("__")
        values.setdefault(section, {})[field] = value
    return from_yaml(yaml.safe_dump(values))


def copy_of(config: Config, directory: Path) -> Config:
    """The same run with all that it has written, in another directory."""
    assert config.run.dir is not None
    shutil.copytree(config.run.dir, directory)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, dir=str(directory)))


def metrics_of(config: Config) -> list[dict]:
    assert config.run.dir is not None
    return [json.loads(line) for line in (Path(config.run.dir) / "metrics.jsonl").read_text().splitlines()]


def final_hash(config: Config) -> str:
    last = metrics_of(config)[-1]
    assert last["final"] is True
    assert last["step"] == config.train.num_steps
    return last["params_sha256"]


def saved_steps(config: Config) -> list[int]:
    folders = Path(config.run.dir, "checkpoints").iterdir()
    return sorted(int(folder.name) for folder in folders if folder.name.isdigit())


def run(config: Config) -> str:
    assert train(config) == 0
    return final_hash(config)


def resumed(config: Config, **changes) -> Config:
    checkpoint = dataclasses.replace(config.checkpoint, resume=True)
    sections = {
        section: dataclasses.replace(getattr(config, section), **values)
        for section, values in changes.items()
    }
    return dataclasses.replace(config, checkpoint=checkpoint, **sections)


def timeless(config: Config) -> list[dict]:
    """The metrics without what a clock has measured."""
    return [{key: value for key, value in line.items() if "second" not in key} for line in metrics_of(config)]


def folder_of(config: Config, step: int) -> Path:
    assert config.run.dir is not None
    return Path(config.run.dir, "checkpoints", str(step))


def manifest_of(config: Config, step: int) -> Manifest:
    return read_manifest(folder_of(config, step))


def arrays_of(config: Config, step: int) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint, whole, by the names of their leaves."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    stored = manifest_of(config, step).arrays
    like = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place) for name, array in stored.items()
    }
    return jax.device_get(array_files.read(folder_of(config, step) / "arrays", like))
