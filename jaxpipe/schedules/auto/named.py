"""The named schedules, as something to begin with and to compare with."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import add

from jaxpipe.schedules.auto.problem import Timing, share_costs
from jaxpipe.schedules.costs import Costs
from jaxpipe.schedules.generators.catalog import GENERATORS, build, find_faults
from jaxpipe.schedules.recompute import with_recompute
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Simulation, simulate
from jaxpipe.schedules.ticks import fuse_backward, split_backward


def named_schedules(
    num_ranks: int, num_microbatches: int, *, chunks: Iterable[int], two_pipes: bool
) -> Iterator[Schedule]:
    """All that can be built with so many chunks, BW split."""
    for name, generator in GENERATORS.items():
        least, most = generator.num_chunks
        for num_chunks in chunks:
            if num_chunks < least or (most is not None and num_chunks > most):
                continue
            sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
            if find_faults(name, **sizes):
                continue
            schedule = split_backward(build(name, **sizes))
            if two_pipes or schedule.placement.num_pipes == 1:
                yield schedule


def in_backward(costs: Costs) -> Costs:
    """Costs per stage of the same work without R: B does the forward again itself."""
    assert isinstance(costs.B, tuple)
    assert isinstance(costs.R, tuple)
    return replace(costs, B=tuple(map(add, costs.B, costs.R)))


def place_recompute(schedule: Schedule, costs: Costs, timing: Timing) -> Schedule:
    """With R where they serve best as it would run; BW split."""
    placed = with_recompute(
        _as_it_runs(schedule, timing),
        costs=share_costs(costs, schedule.placement),
        transfer=timing.transfer,
        sync=timing.sync,
        transfer_ticks=timing.transfer_ticks,
    )
    return split_backward(placed)


def time_schedule(schedule: Schedule, costs: Costs, timing: Timing) -> Simulation:
    """What ``simulate`` says of it as it would run, with ``costs`` as ``find_schedule`` takes them."""
    return simulate(
        _as_it_runs(schedule, timing),
        costs=share_costs(costs, schedule.placement),
        transfer=timing.transfer,
        sync=timing.sync,
        transfer_ticks=timing.transfer_ticks,
    )


def _as_it_runs(schedule: Schedule, timing: Timing) -> Schedule:
    return fuse_backward(schedule) if timing.sync == "neighbor" and timing.fuse_backward else schedule
