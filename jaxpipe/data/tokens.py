"""Byte-level tokens: 0 to 255 are the bytes, 256 ends a document."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257

Tokens = NDArray[np.uint16]


def encode(documents: Sequence[bytes]) -> Tokens:
    """All documents in one row, each followed by ``END_OF_DOCUMENT``."""
    row = np.frombuffer(b"".join(document + b"\0" for document in documents), np.uint8).astype(np.uint16)
    ends = np.cumsum([len(document) + 1 for document in documents], dtype=np.int64) - 1
    row[ends] = END_OF_DOCUMENT
    return row
