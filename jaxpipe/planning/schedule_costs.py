"""What was measured, as the simulator and the search of schedules take it."""

from jaxpipe.planning.costs_file import MeasuredCosts, action_seconds
from jaxpipe.schedules import Costs


def costs_of_layers(
    costs: MeasuredCosts, *, remat: str, num_layers: float, recomputes: bool = False
) -> Costs:
    """Of stages, or ranks, of so many layers each; and of the ends of the pipe.

    recomputes: the schedule has R, after which B and W are those of no remat.
    """
    seconds = {
        kind: action_seconds(
            costs, kind, remat=remat_of(kind, remat=remat, recomputes=recomputes), num_layers=num_layers
        )
        for kind in ("F", "B", "W", "R")
    }
    return Costs(**seconds, head=costs.head / costs.tp, embedding=costs.embedding / costs.tp)


def remat_of(kind: str, *, remat: str, recomputes: bool) -> str:
    """The remat whose cost an action has: B, W and BW find what R has made, as if there were none."""
    return "none" if recomputes and kind in ("B", "W", "BW") else remat


def message_seconds(costs: MeasuredCosts, *, sync: str) -> float:
    """What stands between an action and its neighbour's next.

    The lowered program (``neighbor``) sends to both neighbours at every tick, one after the other, and a tick
    itself costs something; a message of its own (``async``) costs itself alone.
    """
    return 2 * costs.transfer + costs.tick if sync == "neighbor" else costs.transfer
