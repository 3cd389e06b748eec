"""Small Llamas of transformers with random weights, and runs that start from them, by the command itself."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from jaxpipe.checkpoint.leaves import read_leaf
from jaxpipe.checkpoint.manifest import read_manifest
from jaxpipe.cli import main

logging.disable_progress_bar()

BASE = {
    "vocab_size": 260,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "initializer_range": 0.2,
    "max_position_embeddings": 4096,
}

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def save_llama(
    directory: Path, *, dtype: torch.dtype = torch.float32, shard: str = "10KB", **changes: Any
) -> LlamaForCausalLM:
    """A random one, saved by transformers; norms are not 1, so that a scale that is lost shows."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**BASE | changes)).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(directory, max_shard_size=shard)
    return model


def import_run(directory: Path, run: Path, text: str, *flags: object) -> int:
    """``import-hf`` with a run that suits the small ones; a flag overrules."""
    values = {
        "--data.path": f"{text}/*.txt",
        "--data.sequence_length": 16,
        "--data.validation_fraction": 0.2,
        "--mesh.pp": 1,
        "--pipeline.num_microbatches": 4,
        "--train.global_batch_size": 8,
        "--train.num_steps": 2,
        "--train.eval_every": 0,
        "--optimizer.warmup_steps": 0,
    }
    values |= dict(zip(flags[::2], flags[1::2], strict=True))
    words = [str(word) for pair in values.items() for word in pair]
    return main(["import-hf", str(directory), str(run), *words])


def params_of(run: Path, step: int = 0) -> dict[str, np.ndarray]:
    """The parameters of a checkpoint, by the names of their leaves."""
    folder = run / "checkpoints" / str(step)
    stored = read_manifest(folder).arrays
    return {name: read_leaf(folder, name, stored[name]) for name in stored if name.startswith("params.")}
