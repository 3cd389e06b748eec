"""How far a schedule is from the best one, for small cases; needs OR-tools, the extra ``solver``."""

from jaxpipe.solver.exact import Solution, solve

__all__ = ["Solution", "solve"]
