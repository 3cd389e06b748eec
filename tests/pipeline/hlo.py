"""Just enough of a parser for the text of a compiled program (``compiled.as_text()``)."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-broadcast")

_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(r"(calls|to_apply|body|condition)=%([\w.\-]+)")


class Shape(NamedTuple):
    """An array's type: ``f32`` and ``(8, 16)``."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)


class Instruction(NamedTuple):
    """One line: what it makes (a tuple's arrays one after the other), of what, calling what."""

    name: str
    shapes: list[Shape]
    opcode: str
    operands: list[str]
    called: dict[str, str]
    """``{"calls": computation}``; ``body`` and ``condition`` of a while."""
    is_root: bool
    line: str


Computation = dict[str, Instruction]


def parse(text: str) -> dict[str, Computation]:
    """The computations of a program, by name."""
    computations: dict[str, Computation] = {}
    current: Computation = {}
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found[1], {})
        elif found := _INSTRUCTION.match(line):
            name, made, opcode, rest = found.groups()
            arguments, _, attributes = rest.partition(")")
            current[name] = Instruction(
                name,
                [Shape(dtype, _dims(dims)) for dtype, dims in _ARRAY.findall(made)],
                opcode,
                re.findall(r"%([\w.\-]+)", arguments),
                dict(_CALLED.findall(attributes)),
                line.lstrip().startswith("ROOT"),
                line,
            )
    return computations


def instructions(computations: dict[str, Computation]) -> Iterator[Instruction]:
    for computation in computations.values():
        yield from computation.values()


def opcodes(computations: dict[str, Computation]) -> Counter[str]:
    """How many instructions of each kind there are in a program."""
    return Counter(instruction.opcode for instruction in instructions(computations))


def tick_body(computations: dict[str, Computation]) -> str:
    """The name of the loop's body that holds permutes: that of the scan over ticks."""
    bodies = {instruction.called.get("body") for instruction in instructions(computations)}
    (name,) = (
        name
        for name, computation in computations.items()
        if name in bodies
        and any(instruction.opcode.startswith("collective-permute") for instruction in computation.values())
    )
    return name


def reachable(
    computations: dict[str, Computation], name: str, *, into_loops: bool
) -> Iterator[tuple[str, Instruction]]:
    """Every instruction of a computation and of what it calls, each with the name of where it stands."""
    for instruction in computations[name].values():
        yield name, instruction
        if instruction.opcode != "while" or into_loops:
            for called in instruction.called.values():
                yield from reachable(computations, called, into_loops=into_loops)


def updates_in_place(computations: dict[str, Computation], instruction: Instruction) -> bool:
    """Whether an instruction writes a slice of its first operand and leaves the rest where it is."""
    while instruction.opcode == "fusion":
        body = computations[instruction.called["calls"]]
        (instruction,) = (inner for inner in body.values() if inner.is_root)
    return instruction.opcode == "dynamic-update-slice"


def _dims(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
