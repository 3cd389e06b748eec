"""The named schedules, as something to begin with and to compare with."""

from collections.abc import Iterable, Iterator

from jaxpipe.schedules.auto.problem import Timing, share_costs
from jaxpipe.schedules.costs import Costs
from jaxpipe.schedules.generators.catalog import GENERATORS, build, find_faults
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


def time_schedule(schedule: Schedule, costs: Costs, timing: Timing) -> Simulation:
    """What ``simulate`` says of it as it would run, with ``costs`` as ``find_schedule`` takes them."""
    if timing.sync == "neighbor" and timing.fuse_backward:
        schedule = fuse_backward(schedule)
    return simulate(
        schedule,
        costs=share_costs(costs, schedule.placement),
        transfer=timing.transfer,
        sync=timing.sync,
        transfer_ticks=timing.transfer_ticks,
    )
