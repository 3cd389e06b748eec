"""What the benchmark's figures must reach (docs/measurements.md)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.cases import NUM_RANKS

TO_PYTORCH = {"1f1b": 0.85, "zb_h1": 1.0}
"""Step time over that of PyTorch's 1F1B, on four ranks, at m = 8 and 16."""
TO_UNPIPELINED = {"1f1b": 0.9, "zb_h1": 1.0}
"""Step time over the un-pipelined step's, remat full, on four ranks, at m = 8 and 16."""
ONE_RANK = 1.02
"""The executor on one rank over plain gradient accumulation at its fastest (plain.py)."""
COMPILE_RATIO = 2.0
"""Compile time over the un-pipelined step's, of a program that is one scan."""
COMPILE_GROWTH = 1.5
"""Compile time with most over least microbatches: the table is data, so the program stays the same."""
TEMP_GROWTH = 1.05
"""Device temporaries at m = 64 over m = 8, where a rank holds no more microbatches."""

Row = Mapping[str, Any]

ALIKE = ("schedule", "ranks", "chunks", "layers", "remat", "fuse_backward", "transfer_ticks", "program")
"""What rows have in common that differ in their number of microbatches alone."""


def misses(rows: Sequence[Row]) -> Iterator[str]:
    """One sentence for each figure that is not reached; what was not measured is not judged."""
    for row in rows:
        if row.get("program") != "segments":
            yield from _too_slow(row)
            yield from _above(row, "compile_ratio", COMPILE_RATIO)
    series: dict[tuple, dict[int, Row]] = {}
    for row in rows:
        series.setdefault(tuple(row.get(key) for key in ALIKE), {})[row["microbatches"]] = row
    for at in series.values():
        yield from _growth(at, "compile_seconds", first=4, limit=COMPILE_GROWTH)
        if 8 in at and 64 in at and at[8].get("held") == at[64].get("held"):
            yield from _growth(at, "temp_bytes_per_device", first=8, limit=TEMP_GROWTH)


def _too_slow(row: Row) -> Iterator[str]:
    schedule = row["schedule"]
    if row.get("ranks") == 1:
        yield from _above(row, "ratio_to_plain", ONE_RANK)
    elif row.get("ranks") == NUM_RANKS and row["microbatches"] in (8, 16) and row["transfer_ticks"] == 1:
        if schedule in TO_PYTORCH:
            yield from _above(row, "ratio_to_pytorch", TO_PYTORCH[schedule])
        if schedule in TO_UNPIPELINED and row["remat"] == "full":
            yield from _above(row, "ratio_to_unpipelined", TO_UNPIPELINED[schedule])


def _above(row: Row, key: str, limit: float) -> Iterator[str]:
    if key in row and row[key] > limit:
        yield (
            f"{row['schedule']}, p={row['ranks']}, m={row['microbatches']}, remat {row['remat']}: "
            f"{key} must be at most {limit}, but is {row[key]:.3f}"
        )


def _growth(at: Mapping[int, Row], key: str, *, first: int, limit: float, last: int = 64) -> Iterator[str]:
    if first in at and last in at and key in at[first]:
        growth = at[last][key] / at[first][key]
        if growth > limit:
            row = at[last]
            yield (
                f"{row['schedule']}, p={row['ranks']}, remat {row['remat']}: {key} at m={last} must be at "
                f"most {limit} x that at m={first}, but is {growth:.2f} x"
            )
