"""Schedules that nobody wrote: random legal orders over random placements."""

import random

from hypothesis import strategies as st

from jaxpipe.schedules import Action, Kind, Placement, Schedule, looped, mirrored, v_shaped
from jaxpipe.schedules.dependencies import inputs, result


def random_order(
    placement: Placement,
    num_microbatches: int,
    seed: int,
    *,
    ascending: bool = False,
    recompute: bool = False,
) -> Schedule:
    """Whatever is ready may come next, on any rank; some backward passes are split, some fused.

    ``recompute``: with R.
    ``ascending``: each stage takes the microbatches of a pipe in ascending order, in each kind of action.
    """
    choose = random.Random(seed)
    empty = Schedule(f"random {seed}", placement, num_microbatches, ())
    pending = []
    for pipe in range(placement.num_pipes):
        for stage in range(placement.num_stages):
            for microbatch in empty.microbatches(pipe):
                backward = choose.choice([(Kind.BW,), (Kind.B, Kind.W)])
                kinds = (Kind.F, *[Kind.R] * recompute, *backward)
                pending += [Action(kind, stage, microbatch, pipe) for kind in kinds]
    choose.shuffle(pending)
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    done: set[Action] = set()
    while pending:
        later = []
        for action in pending:
            is_ready = done.issuperset(inputs(action, placement.num_stages))
            if recompute and action.kind in (Kind.B, Kind.BW):
                is_ready = is_ready and action._replace(kind=Kind.R) in done
            if ascending and action.microbatch > empty.microbatches(action.pipe).start:
                is_ready = is_ready and done.issuperset(_parts(action, action.microbatch - 1))
            if is_ready and choose.random() < 0.7:
                orders[placement.rank(action.stage, action.pipe)].append(action)
                done |= {result(action), *_parts(action, action.microbatch)}
            else:
                later.append(action)
        pending = later
    return Schedule(empty.name, placement, num_microbatches, tuple(map(tuple, orders)))


def _parts(action: Action, microbatch: int) -> set[Action]:
    """What ``action`` does, for any microbatch, with BW as B and W."""
    kinds = (Kind.B, Kind.W) if action.kind is Kind.BW else (action.kind,)
    return {action._replace(kind=kind, microbatch=microbatch) for kind in kinds}


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    num_ranks = draw(st.integers(1, 8))
    num_microbatches = draw(st.integers(1, 16))
    placement = draw(
        st.sampled_from(
            [
                looped(num_ranks),
                looped(num_ranks, 2),
                looped(num_ranks, 3),
                v_shaped(num_ranks),
                mirrored(num_ranks),
            ]
        )
    )
    seed, recompute = draw(st.integers(0, 2**32 - 1)), draw(st.booleans())
    return random_order(placement, num_microbatches, seed, recompute=recompute)
