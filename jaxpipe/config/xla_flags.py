"""What XLA must be told, in ``XLA_FLAGS``, for a run to give the same bits each time on a GPU.

One flag does it: it leaves out kernels whose sums depend on timing (atomic additions), and chooses among
the others by rule instead of by a race, since the winner of a race differs from run to run. XLA for CPU and
TPU accepts it and is deterministic anyway. XLA reads the variable once, when its first device starts.
"""

from collections.abc import Iterator

VARIABLE = "XLA_FLAGS"
DETERMINISTIC_OPS = "--xla_gpu_deterministic_ops"

_ON = ("", "=true", "=1")


def check_determinism(is_deterministic: bool, flags: str) -> Iterator[str]:
    """What stands in the way, in the value of ``XLA_FLAGS``."""
    if not is_deterministic:
        return
    if flags.strip() and not flags.strip().startswith("-"):
        yield (
            f"run.deterministic needs {DETERMINISTIC_OPS}=true in {VARIABLE}, but {VARIABLE}={flags} names a "
            "file, to which nothing can be added; give its flags themselves"
        )
    against = [word for word in _settings(flags) if word.removeprefix(DETERMINISTIC_OPS) not in _ON]
    if against:
        yield (
            f"run.deterministic needs {DETERMINISTIC_OPS}=true, but {VARIABLE} has {' '.join(against)}; "
            "remove that, or leave run.deterministic out"
        )


def has_determinism(flags: str) -> bool:
    """Whether these flags, which hold nothing against it, ask for determinism already."""
    return bool(_settings(flags))


def with_determinism(flags: str) -> str:
    """The same flags, and the one that is missing."""
    return flags if has_determinism(flags) else f"{flags} {DETERMINISTIC_OPS}=true".strip()


def _settings(flags: str) -> list[str]:
    """The words that set the flag, in order."""
    return [word for word in flags.split() if word.partition("=")[0] == DETERMINISTIC_OPS]
