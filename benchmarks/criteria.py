"""What the benchmark's figures must reach (docs/measurements.md)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

COMPILE_GROWTH = 1.5
"""Compile time with most over least microbatches: the table is data, so the program stays the same."""
TEMP_GROWTH = 1.05
"""Device temporaries at m = 64 over m = 8, where the schedule holds no more than p microbatches."""
RATIOS = {"1f1b": 0.9, "zb_h1": 1.0}
"""Step time over the un-pipelined step's, at m = 8 and 16."""

Row = Mapping[str, Any]


def misses(rows: Sequence[Row]) -> Iterator[str]:
    """One sentence for each figure that is not reached; what was not measured is not judged."""
    at = {(row["schedule"], row["microbatches"]): row for row in rows}
    for schedule in dict.fromkeys(name for name, _ in at):
        yield from _growth(at, schedule, "compile_seconds", first=4, limit=COMPILE_GROWTH)
    for schedule, limit in RATIOS.items():
        yield from _growth(at, schedule, "temp_bytes_per_device", first=8, limit=TEMP_GROWTH)
        for m in (8, 16):
            row = at.get((schedule, m))
            if row and row["ratio_to_unpipelined"] > limit:
                yield (
                    f"{schedule}, m={m}: ratio_to_unpipelined must be at most {limit}, "
                    f"but is {row['ratio_to_unpipelined']:.3f}"
                )


def _growth(
    at: Mapping[tuple[str, int], Row], schedule: str, key: str, *, first: int, limit: float, last: int = 64
) -> Iterator[str]:
    if (schedule, first) in at and (schedule, last) in at:
        growth = at[schedule, last][key] / at[schedule, first][key]
        if growth > limit:
            yield (
                f"{schedule}: {key} at m={last} must be at most {limit} x that at m={first}, "
                f"but is {growth:.2f} x"
            )
