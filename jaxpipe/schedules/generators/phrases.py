"""Orders written as texts, the way one would say them: ``F0 B1 W1``, kind and chunk, or kind and pipe.

The microbatch need not be written: it is the next of its kind and place. A W without a place is the oldest
that is due, and what is due at the end follows by itself.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from jaxpipe.schedules.actions import Action, Kind


def read_phrases(text: str, *, places: Sequence[Action]) -> Iterator[Action]:
    """The actions of one rank; ``places[i]`` is the first F of what the text calls i."""
    count: Counter[tuple[Kind, int]] = Counter()
    due: deque[tuple[int, Action]] = deque()
    for word in text.split():
        if word == "W":
            yield due.popleft()[1]
            continue
        kind, place = Kind(word[0]), int(word[1])
        first = places[place]
        action = first._replace(kind=kind, microbatch=first.microbatch + count[kind, place])
        count[kind, place] += 1
        if kind is Kind.B:
            due.append((place, action._replace(kind=Kind.W)))
        elif kind is Kind.W:
            due.remove((place, action))
        yield action
    yield from (action for _, action in due)


def dualpipe_phases(num_ranks: int, num_microbatches: int, rank: int) -> str:
    """The eight phases of DualPipeV for one rank (DeepSeek-AI 2025, "DualPipe"); m >= 2p.

    In the steady one F of one chunk stands beside the backward of the other.
    """
    before, after = num_ranks - rank - 1, rank + 1
    return (
        "F0 " * (2 * before)
        + "F0 F1 " * after
        + "B1 W1 F1 " * before
        + "F0 B1 W1 F1 B0 W0 " * (num_microbatches - 2 * num_ranks + after)
        + "B1 W1 F1 B0 W0 " * before
        + "B1 W1 B0 W0 " * (after // 2)
        + "B1 W1 B0 " * (after % 2)
        + "B1 B0 " * (after // 2)
        + "W B0 " * before
    )
