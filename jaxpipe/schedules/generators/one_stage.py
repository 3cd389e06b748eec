"""Schedules with one stage a rank: rank r of p has stage r.

Costs are those of a stage, ``BW = B + W``; "holds" counts stage activations.
"""

from collections.abc import Callable, Iterator

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.placement import looped
from jaxpipe.schedules.schedule import Schedule


def gpipe(num_ranks: int, num_microbatches: int, *, reverse_backward: bool = False) -> Schedule:
    """All F, then all backward (Huang et al. 2019, "GPipe"); bubble (p-1)(F+BW), holds m.

    The backward goes in ascending order too, so that gradients are summed as in every other schedule.
    ``reverse_backward`` takes the last microbatch first, as GPipe's paper draws it: the same time and
    memory, but gradients differ in the last bits, since their sums have another order.
    """
    backward = range(num_microbatches)[:: -1 if reverse_backward else 1]

    def order(rank: int) -> Iterator[Action]:
        yield from (Action(Kind.F, rank, microbatch) for microbatch in range(num_microbatches))
        yield from (Action(Kind.BW, rank, microbatch) for microbatch in backward)

    return _schedule("gpipe", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Warm-up, F and BW in turn, drain (Narayanan et al. 2019, "PipeDream"; 2021, section 2.2).

    Bubble (p-1)(F+BW) as gpipe, but rank r holds min(m, p-r).
    """

    def order(rank: int) -> Iterator[Action]:
        warm_up = min(num_ranks - 1 - rank, num_microbatches)
        yield from (Action(Kind.F, rank, microbatch) for microbatch in range(warm_up))
        for microbatch in range(num_microbatches):
            if warm_up + microbatch < num_microbatches:
                yield Action(Kind.F, rank, warm_up + microbatch)
            yield Action(Kind.BW, rank, microbatch)

    return _schedule("1f1b", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """1F1B whose W fill the bubble (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.3).

    Rank r delays W by r microbatches; bubble (p-1)(F+B-W), and no rank holds more than p.
    With m <= p that limit never binds: the ranks run ahead with the longer warm-up of the paper's ZB-H2.
    """
    runs_ahead = num_microbatches <= num_ranks

    def order(rank: int) -> Iterator[Action]:
        warm_up = 2 * (num_ranks - rank) - 1 if runs_ahead else num_ranks - 1 - rank
        return _delayed_weights(
            rank, num_microbatches, warm_up=warm_up, lag=rank, forward_first=not runs_ahead
        )

    return _schedule("zb_h1", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def zb_h2(num_ranks: int, num_microbatches: int) -> Schedule:
    """No bubble between a rank's first action and its last (Qi et al. 2024, section 2.4).

    Rank r warms up with 2(p-r)-1 F and delays W by 2r microbatches, or by as many less as there are less than
    p + r: with F = B = W and m >= 2p-1 only the start of the last rank and the end of the first are left,
    (p-1)F, or (p-1)(F+B-2W) within a span. Holds 2p-1 until B, 2p until W: twice 1f1b.
    """
    surplus = max(num_microbatches - num_ranks, 0)

    def order(rank: int) -> Iterator[Action]:
        return _delayed_weights(
            rank,
            num_microbatches,
            warm_up=2 * (num_ranks - rank) - 1,
            lag=rank + min(rank, surplus),
            forward_first=False,
        )

    return _schedule("zb_h2", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def _delayed_weights(
    stage: int, num_microbatches: int, *, warm_up: int, lag: int, forward_first: bool
) -> Iterator[Action]:
    """``warm_up`` F; then F and B in turn, and W ``lag`` microbatches behind B; then what is left."""
    warm_up = min(warm_up, num_microbatches)
    yield from (Action(Kind.F, stage, microbatch) for microbatch in range(warm_up))
    for microbatch in range(num_microbatches):
        turn = [Action(Kind.B, stage, microbatch)]
        if warm_up + microbatch < num_microbatches:
            turn.insert(0 if forward_first else 1, Action(Kind.F, stage, warm_up + microbatch))
        yield from turn
        if microbatch >= lag:
            yield Action(Kind.W, stage, microbatch - lag)
    yield from (
        Action(Kind.W, stage, microbatch)
        for microbatch in range(max(num_microbatches - lag, 0), num_microbatches)
    )


def _schedule(
    name: str, order: Callable[[int], Iterator[Action]], *, num_ranks: int, num_microbatches: int
) -> Schedule:
    orders = tuple(tuple(order(rank)) for rank in range(num_ranks))
    return Schedule(name, looped(num_ranks), num_microbatches, orders)
