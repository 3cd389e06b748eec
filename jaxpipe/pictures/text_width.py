"""How wide a text is at most, so that none is drawn where it does not fit.

Nobody knows the reader's font: these are the widths of DejaVu Sans and Verdana, the widest of the usual
ones, rounded up.
"""

_WIDTHS = {
    **dict.fromkeys("iIjlrtf|.,:;'! ()[]/-", 0.42),
    **dict.fromkeys("mwMW@%", 1.0),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ&+=<>~", 0.84),
}
_OTHER, _FOREIGN = 0.66, 1.4

MARGIN = 2.0
"""Pixels that stay free on both sides of a text in a box."""


def text_width(text: str, size: float) -> float:
    """Pixels, at a font of ``size`` pixels."""
    return size * sum(_WIDTHS.get(letter, _OTHER if letter.isascii() else _FOREIGN) for letter in text)


def width_of_box(text: str, size: float) -> float:
    """Pixels that a box needs to hold ``text``."""
    return text_width(text, size) + 2 * MARGIN


def shortened(text: str, size: float, *, width: float) -> str:
    """The text, or as much of it as fits, with dots at its end."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "...", size) > width:
        text = text[:-1]
    return text + "..."
