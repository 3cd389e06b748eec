"""What is wrong with a request, all of it at once."""

from collections.abc import Sequence


class RefusedError(ValueError):
    """A request that cannot be answered; ``faults`` has rule, value and remedy of each reason."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


def refuse_if_any(faults: Sequence[str]) -> None:
    """Raise ``RefusedError`` with the faults, each once."""
    if faults:
        raise RefusedError([*dict.fromkeys(faults)])
