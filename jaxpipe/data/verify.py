"""Whether the files of a shard are what was written: their size, their hash, and each id."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpipe.data.prepared import END_BYTES, Manifest, Shard, ends_file, size_fault, tokens_file

_BLOCK = 2**22


def shard_faults(folder: Path, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """What is wrong, in sentences; reads both files to their end, a block at a time."""
    dtype = np.dtype(manifest.dtype)
    tokens, ends = tokens_file(folder, shard), ends_file(folder, shard)
    for file, size, sha256 in (
        (tokens, shard.tokens * dtype.itemsize, shard.tokens_sha256),
        (ends, shard.documents * END_BYTES, shard.ends_sha256),
    ):
        if fault := size_fault(file, size):
            yield fault
        elif _sha256(file) != sha256:
            yield f"{file} is not what was written (its hash is another)"
    if tokens.is_file():
        yield from _outside(tokens, dtype, manifest.vocab_size)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _outside(file: Path, dtype: np.dtype, vocab_size: int) -> Iterator[str]:
    """The first id that is not in the vocabulary."""
    offset = 0
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            ids = np.frombuffer(block[: len(block) // dtype.itemsize * dtype.itemsize], dtype)
            if (ids >= vocab_size).any():
                at = int(np.argmax(ids >= vocab_size))
                place = f"{file} holds id {ids[at]} at token {offset + at:,}"
                yield f"{place}, outside the vocabulary of {vocab_size}"
                return
            offset += len(ids)
