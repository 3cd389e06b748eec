"""What was measured, as the simulator and the search of schedules take it."""

from jaxpipe.planning.costs_file import MeasuredCosts, action_seconds
from jaxpipe.schedules import Costs


def costs_of_layers(
    costs: MeasuredCosts, *, remat: str, num_layers: float, recomputes: bool = False
) -> Costs:
    """Of stages, or ranks, of so many layers each; and of the ends of the pipe.

    recomputes: the schedule has R, after which B and W are those of no remat.
    """
    kinds = {"F": remat, "R": remat} | dict.fromkeys(("B", "W"), "none" if recomputes else remat)
    seconds = {
        kind: action_seconds(costs, kind, remat=of, num_layers=num_layers) for kind, of in kinds.items()
    }
    return Costs(**seconds, head=costs.head, embedding=costs.embedding)


def message_seconds(costs: MeasuredCosts, *, sync: str) -> float:
    """What stands between an action and its neighbour's next.

    The lowered program (``neighbor``) sends to both neighbours at every tick, one after the other, and a tick
    itself costs something; a message of its own (``async``) costs itself alone.
    """
    return 2 * costs.transfer + costs.tick if sync == "neighbor" else costs.transfer
