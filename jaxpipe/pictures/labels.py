"""What stands in an action's box, and what is said when the pointer is on something."""

from jaxpipe.pictures.timed import Held, Timed
from jaxpipe.schedules import Action, Idle, Kind

KINDS = {
    Kind.F: "forward",
    Kind.R: "forward again",
    Kind.B: "gradient of the input",
    Kind.W: "gradient of the weights",
    Kind.BW: "both gradients",
}


def labels_of(action: Action) -> tuple[str, str]:
    """What may stand in its box, the better one first; the colour tells the kind, the shade the chunk."""
    return f"{action.kind}{action.microbatch}", f"{action.microbatch}"


def explain_action(action: Action, timed: Timed) -> str:
    """All that there is to say of an action, on one line."""
    simulation, placement = timed.simulation, timed.schedule.placement
    start, end = simulation.start[action], simulation.end[action]
    parts = [f"{action}: {KINDS[action.kind]}", f"microbatch {action.microbatch}", f"stage {action.stage}"]
    parts.append(f"rank {placement.rank(action.stage, action.pipe)}")
    if placement.num_chunks > 1:
        parts.append(f"chunk {placement.chunk(action.stage, action.pipe)}")
    if placement.num_pipes > 1:
        parts.append(f"pipe {action.pipe}")
    return ", ".join([*parts, _when(start, end)])


def explain_idle(idle: Idle) -> str:
    """When, how long and why."""
    return f"rank {idle.rank} is idle: {idle.cause}, {_when(idle.start, idle.end)}"


def explain_shared(start: float, end: float) -> str:
    """Of what all ranks do together at the ends of the pipe."""
    return f"embedding or head, all ranks together, {_when(start, end)}"


def explain_held(held: Held, rank: int) -> str:
    """How much and when."""
    much = f"{held.until_backward:g} until B, {held.until_weight:g} until W"
    return f"rank {rank} holds activations: {much}, {_when(held.start, held.end)}"


def _when(start: float, end: float) -> str:
    return f"{start:g} to {end:g} ({end - start:g})"
