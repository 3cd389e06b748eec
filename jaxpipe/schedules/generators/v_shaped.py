"""Schedules on the V: rank r of p has stage r as chunk 0 and stage 2p-1-r as chunk 1.

The last stage follows the first on rank 0, so that no rank waits long for its first backward, and all ranks
hold the same. F, B, W are the costs of one of these half-size stages, and "holds" counts their activations.
"""

from collections.abc import Callable
from functools import partial
from itertools import permutations

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.generators.phrases import dualpipe_phases, read_phrases
from jaxpipe.schedules.generators.squeeze import squeeze
from jaxpipe.schedules.placement import v_shaped
from jaxpipe.schedules.schedule import Schedule


def zb_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Zero bubble with the memory of 1f1b (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 6).

    With F = B = W and m >= 2p-1 no rank is idle between its first action and its last, and (p-1)F is left at
    the ends. Holds 2p. With fewer microbatches W wait, which not all published code does (torch: 6 for 3 at
    p = m = 4); the bubble is (p-1)F from m = p on.
    """
    p, m = num_ranks, num_microbatches
    if m < 2 * p - 1:
        return _squeezed("zb_v", _half_block(p), m, limit=2 * p, overtake=True, weights_wait=True)

    def order(rank: int) -> str:
        steady = m - 2 * p + rank + 1
        return (
            "F0 " * (2 * (p - rank) - 1)
            + "F1 F0 " * rank
            + "F1 B1 W1 " * (p - rank)
            + "F0 B0 W0 F1 B1 W1 " * steady
            + "B0 W0 F1 B1 W1 " * (p - 1 - rank)
            + "B0 B1 " * rank
            + "B0 W0 " * (p - rank)
        )

    return _from_texts("zb_v", order, p, m)


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """Half the memory of 1f1b (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3.2).

    Holds 2((p+2)//2). Bubble with F = B = W and m > p/2+1: 3p-7 for even p >= 4, 3p-4 for odd p >= 3, 1 for
    p = 2; never more than published, and less with few microbatches (p = m = 4: 5 for 10).
    """
    limit = 2 * ((num_ranks + 2) // 2)
    return _squeezed(
        "v_half", _half_block(num_ranks), num_microbatches, limit=limit, overtake=True, weights_wait=False
    )


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """A third of the memory of 1f1b (Qi et al. 2024, "Controllable Memory", section 3.2).

    Holds at most 2((p+4)//3), until B about 2p/3. Bubble with F = B = W: 4p-5; where 3 divides p the block
    leaves holes that other actions fill, and it is 4p-7.
    """
    limit, has_holes = 2 * ((num_ranks + 4) // 3), num_ranks % 3 == 0
    return _squeezed(
        "v_min",
        _min_block(num_ranks),
        num_microbatches,
        limit=limit,
        overtake=has_holes,
        weights_wait=not has_holes,
    )


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """DualPipe cut in half (DeepSeek-AI 2025, "DualPipe", the README's DualPipeV): one copy of the weights.

    F of one chunk stands beside the backward of the other, so that communication inside layers can hide.
    Bubble (p-1)(F&B + BW - 3W) with F&B an atomic pair; p-1 with F = B = W where the pair runs as two
    actions. Holds 2p+1. The rule wants m >= 2p: for fewer, those of 2p without the microbatches that there
    are not.
    """
    enough = max(num_microbatches, 2 * num_ranks)
    return _from_texts("dualpipe_v", partial(dualpipe_phases, num_ranks, enough), num_ranks, num_microbatches)


def _from_texts(name: str, order: Callable[[int], str], num_ranks: int, num_microbatches: int) -> Schedule:
    """Microbatches that there are not are left out."""
    orders = []
    for rank in range(num_ranks):
        places = [Action(Kind.F, stage, 0) for stage in (rank, 2 * num_ranks - 1 - rank)]
        actions = read_phrases(order(rank), places=places)
        orders.append(tuple(action for action in actions if action.microbatch < num_microbatches))
    return Schedule(name, v_shaped(num_ranks), num_microbatches, tuple(orders))


# Building blocks: the times of F0, F1, B1, B0 of microbatch 0, rank by rank; microbatch k comes 6k later.
Block = list[tuple[int, int, int, int]]


def _half_block(num_ranks: int) -> Block:
    """F go up the ranks at one a unit of time and come back at one in two; so do B."""
    return _block(num_ranks, hops=(1, 2, 1, 2), turns=(1, 1 if num_ranks % 2 else 4, 2))


def _min_block(num_ranks: int) -> Block:
    """The shortest way there is; two units later at the turn where times would meet modulo 6."""
    return _block(num_ranks, hops=(1, 1, 1, 1), turns=(1, 1 if num_ranks % 3 else 3, 1))


def _block(num_ranks: int, *, hops: tuple[int, int, int, int], turns: tuple[int, int, int]) -> Block:
    """``hops``: units of time from rank to rank for F0, F1, B1, B0; ``turns``: from each to the next."""
    last = num_ranks - 1
    f1 = hops[0] * last + turns[0]
    b1 = f1 + hops[1] * last + turns[1]
    b0 = b1 + hops[2] * last + turns[2]
    return [
        (hops[0] * r, f1 + hops[1] * (last - r), b1 + hops[2] * r, b0 + hops[3] * (last - r))
        for r in range(num_ranks)
    ]


def _squeezed(
    name: str, block: Block, num_microbatches: int, *, limit: int, overtake: bool, weights_wait: bool
) -> Schedule:
    """The block's repetition, squeezed so that no rank holds more than ``limit``."""
    repeated = _repeat(name, block, num_microbatches)
    squeezed = squeeze(repeated, limits=[limit] * len(block), overtake=overtake, weights_wait=weights_wait)
    assert squeezed, f"{name} does not fit its own limit"
    return squeezed


def _weight_times(times: tuple[int, int, int, int]) -> tuple[int, int]:
    """Of W1 and W0: the two units of six that are left, each as soon as it can be behind its B."""
    _, _, b1, b0 = times
    free = {0, 1, 2, 3, 4, 5} - {time % 6 for time in times}
    ways = [(b1 + (first - b1) % 6, b0 + (second - b0) % 6) for first, second in permutations(free)]
    return min(ways, key=lambda way: (sum(way), way))


def _repeat(name: str, block: Block, num_microbatches: int) -> Schedule:
    num_ranks = len(block)
    orders = []
    kinds = (Kind.F, Kind.F, Kind.B, Kind.B, Kind.W, Kind.W)
    for rank, times in enumerate(block):
        one_way, back = rank, 2 * num_ranks - 1 - rank
        stages = (one_way, back, back, one_way, back, one_way)
        of_first = zip((*times, *_weight_times(times)), kinds, stages, strict=True)
        timed = [
            (time + 6 * microbatch, Action(kind, stage, microbatch))
            for time, kind, stage in of_first
            for microbatch in range(num_microbatches)
        ]
        orders.append(tuple(action for _, action in sorted(timed, key=lambda pair: pair[0])))
    return Schedule(name, v_shaped(num_ranks), num_microbatches, tuple(orders))
