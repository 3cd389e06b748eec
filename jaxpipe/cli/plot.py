"""Draw the curves of one run or several: loss, learning rate, gradient norm, throughput, and MFU if known.

What is drawn is what metrics.jsonl holds; the run may be in progress. Several runs are laid over each other:
`jaxpipe plot runs/first runs/second -o curves.svg`.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import find_output_faults, refused, whole_file
from jaxpipe.curves.drawing import FORMATS, draw
from jaxpipe.curves.records import read_records
from jaxpipe.curves.run_curves import RunCurves, curves_of
from jaxpipe.errors import InputError

_METRICS = "metrics.jsonl"
_LONGEST_WINDOW = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, the file and how much is smoothed."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run's directory, or its metrics.jsonl")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="a .png or .svg; of one run, curves.png in its directory"
    )
    parser.add_argument(
        "--smooth",
        default="1",
        metavar="N",
        help="draw means of N logged steps, of fewer at both ends, with the single ones behind (default 1)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the picture; ``RefusedError`` with all that is wrong."""
    window, faults = _read_window(arguments.smooth)
    files = {_metrics_of(text): text for text in arguments.runs}
    faults += _find_file_faults(files)
    output = arguments.output or (str(next(iter(files)).with_name("curves.png")) if len(files) == 1 else None)
    if arguments.output is not None:
        faults += find_output_faults(arguments, ())
    if output is None:
        faults.append(f"{len(files)} runs are drawn into one picture, which needs a name; give -o curves.png")
    elif _format_of(output) not in FORMATS:
        endings = " or ".join(f".{name}" for name in FORMATS)
        faults.append(f"-o {output!r} must end with {endings}; name another file")
    if find_spec("matplotlib") is None:
        faults.append(
            "drawing needs matplotlib, which is not installed; pip install matplotlib (the extra plot)"
        )
    refuse_if_any(faults)
    assert output is not None
    _draw(_read_runs(files), Path(output), image_format=_format_of(output), smooth=window)


def _format_of(output: str) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def _read_window(text: str) -> tuple[int, list[str]]:
    if text.isdecimal() and 1 <= int(text) <= _LONGEST_WINDOW:
        return int(text), []
    return 1, [
        f"--smooth {text!r} must be a whole number from 1 to {_LONGEST_WINDOW}; 1 leaves out the means"
    ]


def _metrics_of(text: str) -> Path:
    """The file that is meant, whether it is there or not."""
    path = Path(text.replace("\0", "")).absolute()
    return path if path.name == _METRICS else path / _METRICS


def _find_file_faults(files: dict[Path, str]) -> list[str]:
    faults = []
    for path, text in files.items():
        try:
            is_there = path.is_file()
        except OSError:  # a name that is too long
            is_there = False
        if not is_there:
            faults.append(f"{text[:200]!r} holds no {_METRICS}; name the directory of a run")
    return faults


def _read_runs(files: dict[Path, str]) -> list[RunCurves]:
    """What they hold; ``RefusedError`` where that is nothing to draw, or cannot be read."""
    runs, faults = [], []
    for path, name in zip(files, _names([path.parent for path in files]), strict=True):
        try:
            curves = curves_of(read_records(path))
        except InputError as error:
            faults.append(str(error))
            continue
        except OSError as error:
            faults.append(f"{path} cannot be read: {error.strerror}")
            continue
        if not curves:
            faults.append(f"{path} holds no number yet; wait until the run has logged a step")
        runs.append(RunCurves(_printable(name), curves))
    refuse_if_any(faults)
    return runs


def _names(directories: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as tell all from each other."""
    most = max(len(directory.parts) for directory in directories)
    for count in range(1, most + 1):
        names = ["/".join(directory.parts[-count:]) for directory in directories]
        if len(set(names)) == len(names):
            return names
    return [str(directory) for directory in directories]


def _printable(name: str) -> str:
    """A name of one line, whatever bytes are in that of the directory."""
    return "".join(letter if letter.isprintable() else " " for letter in name)


def _draw(runs: Sequence[RunCurves], output: Path, *, image_format: str, smooth: int) -> None:
    try:
        with whole_file(output.resolve()) as path:
            draw(runs, path, image_format=image_format, smooth=smooth)
    except OSError as error:
        raise refused(str(output), error) from error
    print(f"{output}: {', '.join(run.name for run in runs)}")
