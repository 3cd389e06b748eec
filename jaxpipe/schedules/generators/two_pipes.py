"""Schedules with pipes in both directions: rank r of p has stage r of pipe 0 and stage p-1-r of pipe 1.

Both ends of the ranks begin at once, so warm-up and drain are half as long; each rank holds the weights of
two stages. "holds" counts stage activations, F, B, W are the costs of a stage. Pipe 0 takes the first half of
the microbatches, pipe 1 the second.
"""

from collections.abc import Iterator
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
    if num_pipes % 2:
        yield f"num_pipes={num_pipes} must be even for chimera; use {num_pipes - 1} or {num_pipes + 1}"
    elif num_ranks % num_pipes:
        yield _not_a_multiple("num_ranks", num_ranks, num_pipes, of=f"num_pipes={num_pipes} for chimera")
    if num_microbatches < num_pipes:
        least = f"at least num_pipes={num_pipes} for chimera"
        yield f"num_microbatches={num_microbatches} must be {least}; use {num_pipes}"


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
    if num_ranks % 2:
        yield _not_a_multiple("num_ranks", num_ranks, 2, of="2 for dualpipe")
    least = 2 * (num_ranks + num_ranks % 2)
    if num_microbatches < least:
        yield (
            f"num_microbatches={num_microbatches} must be even and at least 2 x num_ranks for dualpipe; "
            f"use {least}"
        )
    elif num_microbatches % 2:
        yield _not_a_multiple("num_microbatches", num_microbatches, 2, of="2 for dualpipe")


def _not_a_multiple(size: str, value: int, unit: int, *, of: str) -> str:
    below = value // unit * unit
    use = f"{below} or {below + unit}" if below else f"{unit}"
    return f"{size}={value} must be a multiple of {of}; use {use}"
