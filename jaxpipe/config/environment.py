"""What the environment says: the variables that launchers set for JAX, each in place of a flag."""

from collections.abc import Iterable, Mapping

from jaxpipe.config.assignments import Assignment, Source, Text

VARIABLES = {
    "JAX_COORDINATOR_ADDRESS": "distributed.coordinator",
    "JAX_NUM_PROCESSES": "distributed.num_processes",
    "JAX_PROCESS_ID": "distributed.process_id",
}
"""JAX itself reads the first; the other two are usual names for what it is then passed."""


def read_environment(environment: Mapping[str, str]) -> Source:
    """The assignments of those variables that are set and not empty."""
    return Source(
        tuple(
            Assignment(path, Text(environment[name]), _where(name))
            for name, path in VARIABLES.items()
            if environment.get(name)
        )
    )


def or_unset(assignments: Iterable[Assignment]) -> str:
    """The way out for those whom a variable surprised, ``", or unset JAX_PROCESS_ID"``; empty if none did."""
    found = {(assignment.path, assignment.where) for assignment in assignments}
    names = [name for name, path in VARIABLES.items() if (path, _where(name)) in found]
    return f", or unset {' and '.join(names)}" if names else ""


def _where(name: str) -> str:
    return f"{name} in the environment"
