"""Files that are written beside and renamed when they are whole; errors of writing name the file."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jaxpipe.data.prepared import END_BYTES, SHARDS, Shard
from jaxpipe.data.tokenizer import Tokenizer
from jaxpipe.data.tokens import Tokens, token_dtype

PARTIAL = ".partial"
"""How the name ends of what is not whole."""


class ShardWriter:
    """The two files of a shard, hashed while they are written; what is not finished leaves none."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer) -> None:
        self._paths = [folder / SHARDS / f"{name}.{kind}" for kind in ("tokens", "ends")]
        self._name = name
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array([tokenizer.end_of_document], self._dtype)
        self._hashes = [hashlib.sha256(), hashlib.sha256()]
        self._files: list[BinaryIO] = []
        self._waiting: list[list[bytes]] = [[], []]
        self._tokens, self._documents, self._size = 0, 0, 0
        self._largest_id, self._largest_at = -1, 0

    def __enter__(self) -> "ShardWriter":
        for path in self._paths:
            path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for path, file in zip(self._paths, self._files, strict=False):
            file.close()
            _beside(path).unlink(missing_ok=True)

    def add(self, ids: Tokens, *, is_last: bool) -> None:
        """More of a document, and its end."""
        ids = np.concatenate([ids, self._end]) if is_last else ids
        if len(ids) and int(ids.max()) > self._largest_id:
            at = int(np.argmax(ids))
            self._largest_id, self._largest_at = int(ids[at]), self._tokens + at
        self._tokens += len(ids)
        self._waiting[0].append(ids.astype(self._dtype).tobytes())
        self._size += ids.nbytes
        if is_last:
            self._documents += 1
            self._waiting[1].append(self._tokens.to_bytes(END_BYTES, "little"))
        if self._size > 2**20:
            self._write()

    def finish(self, side: str) -> Shard | None:
        """Bring the files to the disk, and give them their names; None if there is nothing in them."""
        if not self._tokens:
            return None
        self._write()
        for path, file in zip(self._paths, self._files, strict=True):
            with _named(path):
                file.flush()
                os.fsync(file.fileno())
                _beside(path).replace(path)
        tokens_sha256, ends_sha256 = (digest.hexdigest() for digest in self._hashes)
        return Shard(
            name=self._name,
            side=side,
            tokens=self._tokens,
            documents=self._documents,
            tokens_sha256=tokens_sha256,
            ends_sha256=ends_sha256,
            largest_id=self._largest_id,
            largest_at=self._largest_at,
        )

    def _write(self) -> None:
        if not self._files:
            for path in self._paths:
                self._files.append(_beside(path).open("wb"))
        for number, path in enumerate(self._paths):
            block = b"".join(self._waiting[number])
            self._hashes[number].update(block)
            with _named(path):
                self._files[number].write(block)
        self._waiting, self._size = [[], []], 0


def write_whole(path: Path, content: bytes) -> None:
    """The old file or the new one, never half of it."""
    beside = _beside(path)
    with _named(path):
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of writing name no file by themselves."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
