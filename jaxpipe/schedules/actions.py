"""What a rank does: one action on one microbatch of one stage.

    0F3   forward of stage 0 on microbatch 3
    0B3   gradient of that stage's input            (needs 0F3 and the next stage's B)
    0W3   gradient of that stage's weights          (needs 0B3)
    0BW3  both at once                              (what most papers draw as one backward)
    0R3   forward again, for 0B3, which needs it    (needs 0F3)

A schedule has an R for each of its backwards or none at all: then what B needs is kept since F, or B does
the forward again itself. With R, F keeps only the inputs of its layers; R needs nothing of another rank, so
it may run while its rank would wait.

An action carries all its metadata, so one microbatch on two chunks, or in two directions,
never collides. Pipe 1 (Chimera, DualPipe) is written with a prime: ``0F3'``.

Zero-bubble papers call the input gradient B (Qi et al., "Zero Bubble Pipeline Parallelism",
section 2); PyTorch's CSV form writes I for it and B for the whole backward.
"""

import re
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kind of an action."""

    F = "F"
    R = "R"
    B = "B"
    W = "W"
    BW = "BW"

    __hash__ = str.__hash__  # what Enum defines is written in Python, and schedules hash millions of actions


class Action(NamedTuple):
    """One unit of work of one rank; ``stage``, ``microbatch`` and ``pipe`` count from 0.

    A tuple, since schedules look up millions of actions, and tuples are hashed and compared in C.
    """

    kind: Kind
    stage: int
    microbatch: int
    pipe: int = 0

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}" + "'" * self.pipe


_TEXT = re.compile(r"(\d+)(F|R|BW|B|W)(\d+)('*)")


def parse_action(text: str) -> Action:
    """The action that ``str(action)`` wrote; ``ValueError`` names a text that is none."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not an action; write stage, kind and microbatch, such as 0F3, 0B3, 0W3, 0BW3, 0R3"
        )
    stage, kind, microbatch, primes = match.groups()
    return Action(Kind(kind), int(stage), int(microbatch), len(primes))
