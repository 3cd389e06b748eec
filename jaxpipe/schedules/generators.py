"""The named schedules: for each rank the order of its actions, as one would write it down.

Order only: the simulator and the lowering find the time. Rank r of p, m microbatches, one stage a
rank; "bubble" is what is lost with costs F, B, W, and every schedule works for m < p, m = 1, p = 1.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.placement import Placement, looped
from jaxpipe.schedules.schedule import Schedule

LARGEST = 200_000
"""Most forward actions in a schedule: it is a table in memory, drawn and simulated in pure Python."""


def build(
    name: str, *, num_ranks: int, num_microbatches: int, num_chunks: int = 1, **options: object
) -> Schedule:
    """The schedule of that name; ``ValueError`` lists all that is wrong with the request."""
    faults = find_faults(
        name, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, **options
    )
    if faults:
        raise ValueError("; ".join(faults))
    return GENERATORS[name](num_ranks, num_microbatches)


def find_faults(
    name: str, *, num_ranks: int, num_microbatches: int, num_chunks: int = 1, **options: object
) -> list[str]:
    """All that is wrong with a request to ``build``, each as rule, value and remedy."""
    faults = []
    if name not in GENERATORS:
        close = difflib.get_close_matches(name.lower(), GENERATORS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        faults.append(f"schedule {name!r} does not exist; {hint}there are {', '.join(GENERATORS)}")
    sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    faults += [f"{size}={value} must be at least 1" for size, value in sizes.items() if value < 1]
    if not any(value < 1 for value in sizes.values()):
        faults += _too_large(num_ranks * num_chunks, num_microbatches)
    if name in GENERATORS and num_chunks > 1:
        faults.append(
            f"num_chunks={num_chunks} must be 1 for {name}, which has one stage a rank; leave it out"
        )
    faults += [f"option {option!r} does not exist for {name}; leave it out" for option in options]
    return faults


def _too_large(num_stages: int, num_microbatches: int) -> Iterator[str]:
    total = num_stages * num_microbatches
    if total > LARGEST:
        most = LARGEST // num_stages
        yield (
            f"num_ranks x num_chunks x num_microbatches={num_stages} x {num_microbatches} = {total} must be "
            f"at most {LARGEST}; use {f'at most {most} microbatches' if most else 'fewer of each'}"
        )


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """All F, then all backward (Huang et al. 2019, "GPipe"); bubble (p-1)(F+B+W), holds m.

    The backward goes in ascending order too, so that gradients are summed as in every other schedule.
    """

    def order(rank: int) -> Iterator[Action]:
        for kind in (Kind.F, Kind.BW):
            for microbatch in range(num_microbatches):
                yield Action(kind, rank, microbatch)

    return _one_stage_a_rank("gpipe", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Warm-up, F and BW in turn, drain (Narayanan et al. 2019, "PipeDream"; 2021, section 2.2).

    Bubble (p-1)(F+B+W) as gpipe, but rank r holds min(m, p-r).
    """

    def order(rank: int) -> Iterator[Action]:
        warm_up = min(num_ranks - 1 - rank, num_microbatches)
        yield from (Action(Kind.F, rank, microbatch) for microbatch in range(warm_up))
        for microbatch in range(num_microbatches):
            if warm_up + microbatch < num_microbatches:
                yield Action(Kind.F, rank, warm_up + microbatch)
            yield Action(Kind.BW, rank, microbatch)

    return _one_stage_a_rank("1f1b", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


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

    return _one_stage_a_rank("zb_h1", order, num_ranks=num_ranks, num_microbatches=num_microbatches)


def forward_only(placement: Placement, num_microbatches: int) -> Schedule:
    """F alone, for evaluation; the stage nearest to the end goes first, so that little is held."""
    empty = Schedule("forward_only", placement, num_microbatches, ((),) * placement.num_ranks)
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    waiting: list[set[Action]] = [set() for _ in range(placement.num_ranks)]
    for pipe in range(placement.num_pipes):
        waiting[placement.rank(0, pipe)] |= {Action(Kind.F, 0, k, pipe) for k in empty.microbatches(pipe)}
    while any(waiting):
        ran = []
        for order, ready in zip(orders, waiting, strict=True):
            if ready:
                action = max(ready, key=lambda action: (action.stage, -action.microbatch))
                ready.remove(action)
                order.append(action)
                ran.append(action)
        for action in ran:
            if action.stage + 1 < placement.num_stages:
                following = Action(Kind.F, action.stage + 1, action.microbatch, action.pipe)
                waiting[placement.rank(following.stage, following.pipe)].add(following)
    return Schedule("forward_only", placement, num_microbatches, tuple(map(tuple, orders)))


GENERATORS: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1}
)
"""The schedules that ``build`` knows, by name."""


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


def _one_stage_a_rank(
    name: str, order: Callable[[int], Iterator[Action]], *, num_ranks: int, num_microbatches: int
) -> Schedule:
    orders = tuple(tuple(order(rank)) for rank in range(num_ranks))
    return Schedule(name, looped(num_ranks), num_microbatches, orders)
