"""Tokenizers of each kind, and what prepared folders hold."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizers import make_json, make_model

from jaxpipe.data.prepared import read_manifest, row_of

Kinds = dict[str, str | None]


@pytest.fixture(scope="session")
def tokenizers_of(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    """The path of a tokenizer of each kind: bytes, json, model."""
    folder = tmp_path_factory.mktemp("tokenizers")
    make_json(folder / "tokenizer.json")
    make_model(folder / "tokenizer.model")
    return {"bytes": None, "json": f"{folder}/tokenizer.json", "model": f"{folder}/tokenizer.model"}


@pytest.fixture
def prepared_row() -> Callable[[Path, str], np.ndarray]:
    """All tokens of a side of a prepared folder, read at once by numpy alone."""

    def read(folder: Path, side: str) -> np.ndarray:
        manifest = read_manifest(folder)
        files = [
            folder / "shards" / f"{shard.name}.tokens" for shard in manifest.shards if shard.side == side
        ]
        row = np.concatenate([np.fromfile(file, manifest.dtype) for file in files] or [[]])
        assert len(row) == len(row_of(folder, manifest, side))
        return row

    return read
