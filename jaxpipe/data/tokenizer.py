"""What turns documents into ids and back: bytes, a tokenizers file or a sentencepiece model.

A document is text alone: one in which somebody has typed ``<|endoftext|>`` gives the ids of these letters,
never the id that ends a document. So that id stands nowhere but between documents.

Bytes that are no UTF-8 stay what they are where tokens are bytes; a tokenizer of text gets U+FFFD for them.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from jaxpipe.data.cuts import PIECE, Piece, num_pieces, pieces
from jaxpipe.data.tokens import END_OF_DOCUMENT, VOCAB_SIZE, Tokens, encode, token_dtype
from jaxpipe.errors import InputError

BYTES = "bytes"


@dataclass(frozen=True)
class Tokenizer:
    """``digest`` is the hash of its file, ``files`` are those that a copy needs; of bytes there are none.

    vocab_size: above every id.
    end_of_document: the id that ends a document; its name in the file is ``end_of_document_token``.
    encode: texts to their ids, without any that ends a document.
    decode: ids to text; what is no UTF-8 becomes U+FFFD.
    """

    name: str
    digest: str
    vocab_size: int
    end_of_document: int
    end_of_document_token: str | None
    files: tuple[Path, ...]
    encode: Callable[[Sequence[bytes]], list[Tokens]]
    decode: Callable[[Sequence[int]], str]

    @property
    def is_bytes(self) -> bool:
        return self.name == BYTES


def load_tokenizer(path: str | None, *, end_of_document: str | None = None) -> Tokenizer:
    """None: bytes; ``*.json``: a file of the tokenizers library; ``*.model``: one of sentencepiece.

    ``end_of_document`` names the token that ends a document; None: that of the tokenizer_config.json beside
    the file, or a usual one. ``InputError`` if there is none, or the file is not what it should be.
    """
    if path is None:
        if end_of_document is not None:
            raise InputError(
                f"bytes have a token of their own that ends a document, not {end_of_document!r}; "
                "leave the token out, or give a tokenizer"
            )
        return byte_tokenizer()
    file = Path(path).expanduser()
    if file.suffix not in (".json", ".model"):
        raise InputError(
            f"the tokenizer {path} must be a .json file of tokenizers or a .model file of sentencepiece"
        )
    try:
        stat = file.stat()
    except OSError as error:
        raise InputError(
            f"the tokenizer {path} cannot be read: {error.strerror}; correct the path"
        ) from error
    return _load_file(file, end_of_document, (stat.st_size, stat.st_mtime_ns))


def byte_tokenizer() -> Tokenizer:
    """Each byte is its own id."""
    return Tokenizer(BYTES, BYTES, VOCAB_SIZE, END_OF_DOCUMENT, None, (), _encode_bytes, _decode_bytes)


def copy_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Copy its files into ``folder``, each whole or not at all; of bytes there are none.

    Also the tokenizer_config.json beside it; it names the token that ends a document.
    """
    for file in tokenizer.files:
        kept = folder / file.name
        if kept.resolve() == file.resolve():
            continue
        folder.mkdir(exist_ok=True)
        beside = kept.with_name(f".{kept.name}.{os.getpid()}")
        try:
            shutil.copyfile(file, beside)
            beside.replace(kept)
        finally:
            beside.unlink(missing_ok=True)


def encode_documents(tokenizer: Tokenizer, documents: Sequence[bytes]) -> Tokens:
    """All documents in one row, each followed by the id that ends it."""
    if tokenizer.is_bytes:
        return encode(documents)
    dtype = token_dtype(tokenizer.vocab_size)
    end = np.array([tokenizer.end_of_document], dtype)
    found = [np.empty(0, dtype)]
    for ids, piece in encode_pieces(tokenizer, _pieces_of(documents)):
        found += [ids, end] if piece.is_last else [ids]
    return np.concatenate(found)


def encode_pieces(tokenizer: Tokenizer, stream: Iterable[Piece]) -> Iterator[tuple[Tokens, Piece]]:
    """The ids of each piece; those that are short are encoded together."""
    waiting: list[Piece] = []
    size = 0
    for piece in stream:
        waiting.append(piece)
        size += len(piece.text)
        if size >= PIECE:
            yield from zip(tokenizer.encode([item.text for item in waiting]), waiting, strict=True)
            waiting, size = [], 0
    yield from zip(tokenizer.encode([item.text for item in waiting]), waiting, strict=True)


def _pieces_of(documents: Sequence[bytes]) -> Iterator[Piece]:
    for document in documents:
        count, read = num_pieces(len(document)), partial(_slice, document)
        texts = pieces(read, 0, count, length=len(document))
        yield from (Piece(text, number == count) for number, text in enumerate(texts, start=1))


def _slice(document: bytes, start: int, stop: int) -> bytes:
    return document[start:stop]


@lru_cache(maxsize=2)
def _load_file(file: Path, end_of_document: str | None, state: tuple[int, int]) -> Tokenizer:
    """``state`` changes with the file, so that the cache does not outlive it."""
    from jaxpipe.data import tokenizer_files

    load = tokenizer_files.load_json if file.suffix == ".json" else tokenizer_files.load_sentencepiece
    return load(file, end_of_document)


def _encode_bytes(texts: Sequence[bytes]) -> list[Tokens]:
    return [np.frombuffer(text, np.uint8).astype(token_dtype(VOCAB_SIZE)) for text in texts]


def _decode_bytes(ids: Sequence[int]) -> str:
    return bytes(number for number in ids if number < END_OF_DOCUMENT).decode("utf-8", "replace")
