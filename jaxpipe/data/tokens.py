"""Tokens in one row: the ids of all documents, each followed by the id that ends a document.

As bytes, 0 to 255 are themselves and 256 ends a document. On disk and in memory an id takes two bytes, or
four where the vocabulary is larger than that allows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257

Tokens = NDArray[np.unsignedinteger]
"""uint16 or uint32 [tokens]."""


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The little-endian type that holds all ids below ``vocab_size``."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def encode(documents: Sequence[bytes]) -> Tokens:
    """All documents in one row of bytes, each followed by ``END_OF_DOCUMENT``."""
    row = np.frombuffer(b"".join(document + b"\0" for document in documents), np.uint8).astype(np.uint16)
    ends = np.cumsum([len(document) + 1 for document in documents], dtype=np.int64) - 1
    row[ends] = END_OF_DOCUMENT
    return row
