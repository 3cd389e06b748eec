"""Schedules of several chunks a rank, looped: rank r of p has stages r, p+r, 2p+r, ...

v chunks; F, B, W are the costs of one of these smaller stages, and "holds" counts their activations.
Microbatches go through the chunks in groups of p. The last group may be short: the order is that of whole
groups without the microbatches that there are not.
"""

from collections.abc import Callable, Iterator

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.placement import looped
from jaxpipe.schedules.schedule import Schedule


def interleaved(num_ranks: int, num_microbatches: int, *, num_chunks: int) -> Schedule:
    """1F1B over chunks (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2).

    Rank r warms up with (v-1)p + 2(p-1-r) F. Bubble (p-1)(F+BW), of stages 1/v as large as those of 1f1b;
    rank 0 holds (v-1)p + 2(p-1) + 1, a little more than 1f1b.
    """

    def order(rank: int) -> Iterator[Action]:
        forwards, backwards = _in_groups(rank, num_ranks, num_microbatches, num_chunks=num_chunks)
        warm_up = (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - rank)
        yield from (Action(Kind.F, *which) for which in forwards[:warm_up])
        for turn, which in enumerate(backwards):
            yield from (Action(Kind.F, *which) for which in forwards[warm_up + turn : warm_up + turn + 1])
            yield Action(Kind.BW, *which)

    return _schedule("interleaved", order, num_ranks, num_microbatches, num_chunks=num_chunks)


def interleaved_zb(num_ranks: int, num_microbatches: int, *, num_chunks: int) -> Schedule:
    """zb_h1 over chunks: a shorter warm-up, and W behind B by r (Qi et al. 2024, section 2.3, on chunks).

    Bubble (p-1)(F+B-W), of stages 1/v as large as those of zb_h1; holds vp. With one chunk and m > p it is
    zb_h1.
    """

    def order(rank: int) -> Iterator[Action]:
        forwards, backwards = _in_groups(rank, num_ranks, num_microbatches, num_chunks=num_chunks)
        warm_up = num_chunks * num_ranks - 1 - rank
        yield from (Action(Kind.F, *which) for which in forwards[:warm_up])
        for turn, which in enumerate(backwards):
            yield from (Action(Kind.F, *which) for which in forwards[warm_up + turn : warm_up + turn + 1])
            yield Action(Kind.B, *which)
            if turn >= rank:
                yield Action(Kind.W, *backwards[turn - rank])
        yield from (Action(Kind.W, *which) for which in backwards[len(backwards) - rank :])

    return _schedule("interleaved_zb", order, num_ranks, num_microbatches, num_chunks=num_chunks)


def looped_bfs(num_ranks: int, num_microbatches: int, *, num_chunks: int) -> Schedule:
    """gpipe over chunks, breadth first (Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism", section 4).

    All m microbatches go through chunk 0, then all through chunk 1; the backward takes the last chunk first.
    Bubble as interleaved, but every rank holds v m.
    """

    def order(rank: int) -> Iterator[Action]:
        stages = range(rank, num_ranks * num_chunks, num_ranks)
        for kind, one_way in ((Kind.F, stages), (Kind.BW, reversed(stages))):
            for stage in one_way:
                yield from (Action(kind, stage, microbatch) for microbatch in range(num_microbatches))

    return _schedule("looped_bfs", order, num_ranks, num_microbatches, num_chunks=num_chunks)


def _in_groups(
    rank: int, num_ranks: int, num_microbatches: int, *, num_chunks: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """``(stage, microbatch)`` of a rank's forwards and of its backwards, in order, for whole groups."""
    stages = range(rank, num_ranks * num_chunks, num_ranks)
    groups = [range(first, first + num_ranks) for first in range(0, num_microbatches, num_ranks)]
    forwards = [(stage, microbatch) for group in groups for stage in stages for microbatch in group]
    backwards = [(stage, microbatch) for group in groups for stage in stages[::-1] for microbatch in group]
    return forwards, backwards


def _schedule(
    name: str,
    order: Callable[[int], Iterator[Action]],
    num_ranks: int,
    num_microbatches: int,
    *,
    num_chunks: int,
) -> Schedule:
    orders = tuple(
        tuple(action for action in order(rank) if action.microbatch < num_microbatches)
        for rank in range(num_ranks)
    )
    return Schedule(name, looped(num_ranks, num_chunks), num_microbatches, orders)
