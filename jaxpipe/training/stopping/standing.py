"""Where a run stands: what its main thread does, for a thread that may have to end the process.

The main thread says what it begins; that costs less than a microsecond, so it does so at each step::

    standing.prepare("compiling the step")       nothing is new yet: the process may be left at once
    standing.begin("step 41", is_timed=True)     a step or a batch, which run.step_timeout limits
    standing.begin("saving step 40")             anything else; only a signal limits it
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from jaxpipe.training.stopping.leaving import say_and_exit

_PACKAGE = Path(__file__).parents[2]
_DISK_SECONDS = 2.0


class Activity(NamedTuple):
    """What is being done since when, in seconds of ``time.monotonic``."""

    doing: str
    since: float
    is_timed: bool = False
    can_be_left: bool = False


def _starting() -> Activity:
    return Activity("starting", time.monotonic(), can_be_left=True)


@dataclass
class Standing:
    """What the main thread does, and what another one needs to end the process with a good sentence.

    activity: replaced as a whole, so that other threads never see half of a change.
    latest: the step of the newest complete checkpoint, None if there is none; asks the disk.
    end: ends this process, and those that it belongs to, with a sentence and a code.
    process: which of how many this is; empty for a single one.
    """

    activity: Activity = field(default_factory=_starting)
    latest: Callable[[], int | None] | None = None
    end: Callable[[str, int], NoReturn] = say_and_exit
    process: str = ""

    def prepare(self, doing: str) -> None:
        """From now on the main thread does what is lost without harm."""
        self.activity = Activity(doing, time.monotonic(), can_be_left=True)

    def begin(self, doing: str, *, is_timed: bool = False) -> None:
        """From now on the main thread does this, for the run."""
        self.activity = Activity(doing, time.monotonic(), is_timed=is_timed)


def report(standing: Standing) -> str:
    """``step 41 (for 3.2 s, at jaxpipe/training/loop.py:77 in run_loop; process 0 of 2)``."""
    doing, since, *_ = standing.activity
    process = f"; {standing.process}" if standing.process else ""
    return f"{doing} (for {time.monotonic() - since:.1f} s, at {place_of_main_thread()}{process})"


def place_of_main_thread() -> str:
    """File, line and function of the main thread's innermost call within this package."""
    frame = innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    return _place(frame or innermost)


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else path.name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def last_checkpoint(standing: Standing) -> str:
    """In words; a disk that does not answer, which may be why the process is ended, is not waited for."""
    found: list[int | None] = []
    if standing.latest is None:
        return "checkpoints are as they were"
    latest = standing.latest

    def ask() -> None:
        with suppress(OSError):
            found.append(latest())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_DISK_SECONDS)
    if not found:
        return "the disk of the checkpoints does not answer"
    return (
        "there is no checkpoint yet"
        if found[0] is None
        else f"the last checkpoint is that of step {found[0]}"
    )
