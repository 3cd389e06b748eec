"""The command ``jaxpipe``: which words it knows, and how it ends.

    jaxpipe schedule list
    jaxpipe schedule show zb_h1 --ranks 4 --microbatches 8 --cost F=1.15 --cost B=1.4 --format json
    jaxpipe schedule compare 1f1b interleaved:2 zb_v --ranks 4 --microbatches 8 --format html -o compared.html
    jaxpipe schedule trace zb_v --ranks 4 --microbatches 8 -o trace.json
    jaxpipe schedule auto --ranks 4 --microbatches 16 --cost F=10 --cost B=12 --cost W=8 --memory 3
    jaxpipe schedule csv zb_v --ranks 4 --microbatches 8 -o zb_v.csv
    jaxpipe checkpoint ls runs/first
    jaxpipe checkpoint verify runs/first
    jaxpipe checkpoint diff runs/first runs/second/checkpoints/100
    jaxpipe checkpoint export runs/first -o first.npz
    jaxpipe data prepare 'texts/**/*.jsonl' -o prepared --tokenizer tokenizer.json
    jaxpipe data verify prepared
    jaxpipe plan --model configs/llama3_70b.yaml --devices 64 --memory 80GB --picture frontier.svg
    jaxpipe generate runs/first --prompt "def "
    jaxpipe import-hf Llama-3.2-1B runs/second my.yaml --mesh.dp 2
    jaxpipe export-hf runs/second second-hf --dtype bfloat16
    jaxpipe compare-hf second-hf runs/second
    jaxpipe plot runs/first runs/second -o curves.svg
    jaxpipe profile configs/bench.yaml -o costs.json --mesh.pp 2
    jaxpipe explain runs/first -o explained.html --trace explained.json

Schedules answer within a second, and so does ``ls``, since nothing here loads JAX, nor a command that was not
asked for. All faults of a request are reported at once, with exit code 2.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from jaxpipe.cli.faults import RefusedError
from jaxpipe.errors import InputError, StorageError

_TERMINATED = 128 + signal.SIGTERM

_SCHEDULE = (
    ("list", "the names of the schedules", "listing"),
    ("show", "a schedule's grid or picture, bubble and activations held", "show"),
    ("compare", "several schedules under one time axis, with a table", "compare"),
    ("trace", "a schedule as a trace for Perfetto or Chrome", "trace"),
    ("auto", "search for the best order, for given costs and memory", "auto"),
    ("csv", "a schedule's order as CSV", "write_csv"),
)
_CHECKPOINT = (
    ("ls", "what is there: step, time, size, validation loss, and what is wrong", "checkpoint.ls"),
    ("verify", "whether every file and every array is what was saved", "checkpoint.verify"),
    ("diff", "which arrays of two checkpoints differ, where, and by how much", "checkpoint.diff"),
    ("export", "the arrays as one .npz file, for NumPy alone", "checkpoint.export"),
)
_DATA = (
    ("prepare", "turn text, .jsonl and .parquet into tokens that a run maps into memory", "data.prepare"),
    ("verify", "whether every file of prepared tokens is what was written", "data.verify"),
)

_GROUPS = (
    ("schedule", "look at pipeline schedules", _SCHEDULE),
    ("checkpoint", "look at the checkpoints of a run", _CHECKPOINT),
    ("data", "prepare text for training", _DATA),
)
"""Word, help and commands; of each command the word, its help, and the module with ``add_arguments`` and
``run``, whose docstring describes it."""

_ALONE: tuple[tuple[str, str, str], ...] = (
    ("plan", "which layout to train with: what fits, how fast, and why not faster", "plan"),
    ("generate", "continue a text with the model of a checkpoint", "generate"),
    ("import-hf", "start a run from a Llama of Hugging Face", "hugging_face.import_hf"),
    ("export-hf", "write a checkpoint as a Llama of Hugging Face", "hugging_face.export_hf"),
    ("compare-hf", "compare the logits of the two", "hugging_face.compare_hf"),
    ("explain", "where the time of a step went, beside the prediction", "explain"),
    ("plot", "the curves of one run or several as a picture", "plot"),
    ("profile", "measure what a configuration's actions cost on the devices at hand", "profile"),
)
"""Commands that are in no group, of one word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, 2 for a request that cannot be answered, 1 for a full disk, 130 if interrupted.

    SIGTERM ends it like Ctrl-C, with all that it cleans up, but by ``SystemExit`` with 143.
    Each ``verify`` and ``diff`` also end with 1 where something is damaged or different.
    """
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the end)
    arguments = _parser(chosen=argv[:2]).parse_args(argv)
    name = " ".join(["jaxpipe", arguments.group, *filter(None, [getattr(arguments, "action", None)])])
    try:
        with _ending_on_signals():
            code = arguments.run(arguments)
        sys.stdout.flush()
    except RefusedError as refused:
        print("\n".join(f"{name}: {fault}" for fault in refused.faults), file=sys.stderr)
        return 2
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except StorageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever reads, such as head, has seen enough.
        _close_stdout()
        return 0
    except OSError as error:
        _close_stdout()
        print(
            f"{name}: standard output cannot be written: {error.strerror or str(error)}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        _close_stdout()
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except _TerminatedError:
        _close_stdout()
        print(f"{name}: terminated", file=sys.stderr)
        return _TERMINATED
    return code or 0


class _TerminatedError(SystemExit):
    """SIGTERM came; no ``except Exception`` stops it."""


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """SIGINT raises ``KeyboardInterrupt`` in here, SIGTERM ``SystemExit``, if this is the main thread.

    So commands tidy up. A second SIGTERM does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _TerminatedError(_TERMINATED)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _close_stdout() -> None:
    """Python would flush once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(chosen: Sequence[str]) -> argparse.ArgumentParser:
    """Knows the arguments of the ``chosen`` command.

    Values stay texts here: the commands read them, and report all that are wrong together.
    """
    parser = argparse.ArgumentParser(
        prog="jaxpipe", description="Pipeline-parallel pre-training in JAX.", allow_abbrev=False
    )
    groups = parser.add_subparsers(required=True, metavar="COMMAND", dest="group")
    for group, summary, commands in _GROUPS:
        parser_of_group = groups.add_parser(group, help=summary, allow_abbrev=False)
        actions = parser_of_group.add_subparsers(required=True, metavar="ACTION", dest="action")
        for name, summary_of_command, module in commands:
            parser_of_command = actions.add_parser(name, help=summary_of_command, allow_abbrev=False)
            if [group, name] == [*chosen]:
                _load(module, parser_of_command)
    for name, summary_of_command, module in _ALONE:
        parser_of_command = groups.add_parser(name, help=summary_of_command, allow_abbrev=False)
        if [name] == [*chosen[:1]]:
            _load(module, parser_of_command)
    return parser


def _load(module: str, parser: argparse.ArgumentParser) -> None:
    """Import the command, and let it describe itself."""
    command = import_module(f"jaxpipe.cli.{module}")
    parser.description = command.__doc__
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)
