"""Schedules with pipes in both directions: rank r of p has stage r of pipe 0 and stage p-1-r of pipe 1.

Both ends of the ranks begin at once, so warm-up and drain are half as long; each rank holds the weights of
two stages. "holds" counts stage activations, F, B, W are the costs of a stage. Pipe 0 takes the first half of
the microbatches, pipe 1 the second.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.generators.one_stage import one_f_one_b
from jaxpipe.schedules.generators.phrases import dualpipe_phases, read_phrases
from jaxpipe.schedules.generators.squeeze import squeeze
from jaxpipe.schedules.placement import mirrored
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import simulate
from jaxpipe.schedules.ticks import split_backward


def chimera(num_ranks: int, num_microbatches: int, *, num_pipes: int = 2) -> Schedule:
    """Opposed 1f1b, merged (Li and Hoefler 2021, "Chimera", section 3).

    A pipe's microbatches go in groups of p / ``num_pipes``, as published; but groups follow each other
    without the bubbles that concatenation leaves in the middle, and W run where a rank would be idle. So p =
    4 takes 14, 26 and 50 for m = 4, 8 and 16 with unit costs, where the published order takes 16, 30 and 58
    in the same memory: each pipe min(p / ``num_pipes``, p - stage), with two pipes p/2+1 on outer ranks to p
    on inner ones.

    With four or more pipes (section 3.6) a rank has as many stages; that can be simulated, but not run.
    """
    placement = mirrored(num_ranks, num_pipes)
    empty = Schedule("chimera", placement, num_microbatches, ())
    group = num_ranks // num_pipes
    timed: list[list[tuple[float, int, Action]]] = [[] for _ in range(num_ranks)]
    start = simulate(one_f_one_b(num_ranks, group)).start
    for pipe in range(num_pipes):
        own = empty.microbatches(pipe)
        for action, time in start.items():
            for microbatch in own[action.microbatch :: group]:
                later = (microbatch - own.start) // group * 3 * num_ranks
                moved = action._replace(microbatch=microbatch, pipe=pipe)
                timed[placement.rank(action.stage, pipe)].append((time + later, pipe, moved))
    orders = tuple(
        tuple(action for _, _, action in sorted(line, key=lambda entry: entry[:2])) for line in timed
    )
    limits = [
        sum(min(group, num_ranks - placement.stage(rank, 0, pipe)) for pipe in range(num_pipes))
        for rank in range(num_ranks)
    ]
    squeezed = squeeze(split_backward(replace(empty, orders=orders)), limits=limits)
    assert squeezed, "1f1b fits into its own memory"
    return squeezed


def find_chimera_faults(num_ranks: int, num_microbatches: int, *, num_pipes: int = 2) -> Iterator[str]:
    """Sizes that do not divide among the pipes."""

    def is_legal(p: int, m: int) -> bool:
        return p % num_pipes == 0 and m >= num_pipes

    if num_pipes % 2:
        yield f"num_pipes={num_pipes} must be even for chimera; use {num_pipes - 1} or {num_pipes + 1}"
    elif not is_legal(num_ranks, num_microbatches):
        yield (
            f"num_ranks={num_ranks} must be a multiple of num_pipes={num_pipes} for chimera, and "
            f"num_microbatches={num_microbatches} at least that; "
            f"{_nearest(num_ranks, num_microbatches, is_legal, reach=2 * num_pipes)}"
        )


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """F of one pipe beside the backward of the other (DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.1).

    The phases are those of dualpipe_v with p/2 ranks and m/2 microbatches, seen from the nearer end. Bubble
    (p/2-1)(F&B + BW - 3W) with F&B an atomic pair; p/2-1 with F = B = W where the pair runs as two actions.
    Holds p+1. Even p and m, m >= 2p.
    """
    orders = []
    for rank in range(num_ranks):
        up = Action(Kind.F, rank, 0, pipe=0)
        down = Action(Kind.F, num_ranks - 1 - rank, num_microbatches // 2, pipe=1)
        nearer_first = (up, down) if up.stage < down.stage else (down, up)
        phases = dualpipe_phases(num_ranks // 2, num_microbatches // 2, min(up.stage, down.stage))
        orders.append(tuple(read_phrases(phases, places=nearer_first)))
    return Schedule("dualpipe", mirrored(num_ranks), num_microbatches, tuple(orders))


def find_dualpipe_faults(num_ranks: int, num_microbatches: int) -> Iterator[str]:
    """Odd sizes, and fewer microbatches than the phases need."""

    def is_legal(p: int, m: int) -> bool:
        return p % 2 == m % 2 == 0 and m >= 2 * p

    if not is_legal(num_ranks, num_microbatches):
        yield (
            f"num_ranks={num_ranks} and num_microbatches={num_microbatches} must be even, and the latter at "
            "least twice the former, for dualpipe; "
            f"{_nearest(num_ranks, num_microbatches, is_legal, reach=2 * num_ranks + 4)}"
        )


def _nearest(
    num_ranks: int, num_microbatches: int, is_legal: Callable[[int, int], bool], *, reach: int
) -> str:
    """The legal sizes that differ least in sum, with as few other ranks as possible."""
    for distance in range(1, reach + 1):
        for other in range(distance + 1):
            for p in sorted({num_ranks - other, num_ranks + other}):
                found = [m for m in _around(num_microbatches, distance - other) if p > 0 and is_legal(p, m)]
                if found:
                    return f"use num_ranks={p} and num_microbatches={' or '.join(map(str, found))}"
    raise AssertionError("legal sizes lie within reach")


def _around(value: int, distance: int) -> list[int]:
    return [near for near in sorted({value - distance, value + distance}) if near > 0]
