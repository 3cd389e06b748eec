"""Where a long document is cut into pieces that are encoded one by one.

A tokenizer needs some hundred times the memory of the text it is given, so no long document is given whole:
cut number i lies after the last line end of bytes (i - 1) PIECE to i PIECE, or without one at i PIECE, in
front of a character. Whoever wants one cut reads that much and no more, so a file can be shared out among
processes, and the pieces do not depend on how. Texts of up to ``PIECE`` bytes are one piece.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

PIECE = 256 * 1024
"""Bytes between two cuts, about."""

Read = Callable[[int, int], bytes]
"""The bytes of a document from one offset to another."""


class Piece(NamedTuple):
    """Some text of a document; ``is_last`` where the document ends with it."""

    text: bytes
    is_last: bool
    side: str = ""


def num_pieces(length: int) -> int:
    """Of a document of so many bytes; 0 if it is empty."""
    return -(-length // PIECE)


def cut(read: Read, number: int, *, length: int) -> int:
    """The offset of a cut: number 0 is the beginning, and the last is the end."""
    if number == 0 or number * PIECE >= length:
        return min(number * PIECE, length)
    start, stop = (number - 1) * PIECE, number * PIECE
    window = read(start, stop + 1)
    if line_end := window.rfind(b"\n", 0, PIECE) + 1:
        return start + line_end
    return start + character_start(window, PIECE)


def pieces(read: Read, first: int, behind: int, *, length: int) -> Iterator[bytes]:
    """Pieces ``first`` to ``behind`` - 1."""
    start = cut(read, first, length=length)
    for number in range(first + 1, behind + 1):
        stop = cut(read, number, length=length)
        yield read(start, stop)
        start = stop


def character_start(text: bytes, offset: int) -> int:
    """``offset``, or where the character of UTF-8 begins that it lies within; of other bytes, ``offset``."""
    for start in range(offset, max(offset - 4, 0), -1):
        if start == len(text) or text[start] & 0xC0 != 0x80:
            return start
    return offset
