"""What each kind of action costs, in seconds or any other unit of time."""

from dataclasses import dataclass, fields

from jaxpipe.schedules.actions import Action, Kind

LEAST, MOST = 1e-9, 1e9
"""The costs in between can be added and divided without a thought; no action of a device is beyond them."""


@dataclass(frozen=True)
class Costs:
    """Seconds for F, B and W: one number, or one for each stage; BW costs B + W.

    ``ValueError`` lists all costs that are not between ``LEAST`` and ``MOST``.
    """

    F: float | tuple[float, ...] = 1.0
    B: float | tuple[float, ...] = 1.0
    W: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        faults = [
            f"cost {field.name}={value} must be at least {LEAST:g} and at most {MOST:g}"
            for field in fields(self)
            for value in _as_tuple(getattr(self, field.name))
            if not LEAST <= value <= MOST
        ]
        if faults:
            raise ValueError("; ".join(faults))


def cost_of(action: Action, costs: Costs) -> float:
    """Seconds that ``action`` takes."""
    if action.kind is Kind.BW:
        return _at_stage(costs.B, action.stage) + _at_stage(costs.W, action.stage)
    return _at_stage(getattr(costs, action.kind), action.stage)


def find_cost_faults(costs: Costs, num_stages: int) -> list[str]:
    """Costs given per stage, but not for each stage once."""
    return [
        f"{len(value)} costs {field.name} for {num_stages} stages; give one for each, or a single number"
        for field in fields(costs)
        if isinstance(value := getattr(costs, field.name), tuple) and len(value) != num_stages
    ]


def _as_tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _at_stage(value: float | tuple[float, ...], stage: int) -> float:
    return value[stage] if isinstance(value, tuple) else value


UNIT_COSTS = Costs()
"""1 for each of F, B and W, as published figures suppose."""
