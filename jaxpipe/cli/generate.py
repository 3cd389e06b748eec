"""Continue a text with the model of a checkpoint.

A token is drawn from the most probable ones whose probabilities add up to --top-p, after the logits were
divided by --temperature; temperature 0 takes the most probable one. The same seed gives the same text. A
sample ends after --num-tokens tokens, or where the model ends the document. The model runs on one device, an
accelerator if there is one; --pp and --tp share it among several.
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.cli.checkpoint.places import HELP, find_steps, find_whole
from jaxpipe.cli.checkpoint.saved_config import saved_config
from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.leaving import leaving_at_once
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.sizes import read_number
from jaxpipe.config import Config
from jaxpipe.config.ranges import Range
from jaxpipe.training.generation.text_tokens import (
    TextTokens,
    continuation,
    printable,
    prompt_ids,
    text_tokens,
    until_end,
)
from jaxpipe.training.run_tokenizer import saved_tokenizer

FORMATS = ("text", "json")

_STDIN = "-"
_MOST_BY_ITSELF = 128
_COUNT = Range(1, 2**16)
_NUMBERS: dict[str, tuple[Callable[[str], Any], Range]] = {
    "num_tokens": (int, Range(1, 2**24)),
    "num_samples": (int, _COUNT),
    "temperature": (float, Range(0, 1000)),
    "top_p": (float, Range(0, 1, low_open=True)),
    "seed": (int, Range(0, 2**32 - 1)),
    "pp": (int, _COUNT),
    "tp": (int, _COUNT),
}
_HALF_A_CHARACTER = "\ufffd"


class _Request(NamedTuple):
    """What was asked for, as far as it can be checked without the checkpoint.

    num_tokens: None if it was not given.
    """

    prompt: str
    num_tokens: int | None
    num_samples: int
    temperature: float
    top_p: float
    seed: int
    pp: int
    tp: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The checkpoint, the prompt, and how to draw."""
    parser.add_argument("checkpoint", metavar="RUN", help=HELP)
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        default="",
        help="the text to continue; - reads standard input; without one, a document begins",
    )
    parser.add_argument(
        "--num-tokens", metavar="N", help="tokens to add (default 128, or as many as the model has room for)"
    )
    parser.add_argument("--num-samples", metavar="N", default="1", help="continuations (default 1)")
    parser.add_argument("--temperature", metavar="T", default="0.8", help="0 to 1000 (default 0.8)")
    parser.add_argument("--top-p", metavar="P", default="0.95", help="above 0, at most 1 (default 0.95)")
    parser.add_argument("--seed", metavar="N", default="0", help="of the draws (default 0)")
    parser.add_argument("--pp", metavar="N", default="1", help="devices that share the layers (default 1)")
    parser.add_argument("--tp", metavar="N", default="1", help="devices that share each layer (default 1)")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="the run's tokenizer, if its directory is not there any more"
    )
    add_output_arguments(parser, FORMATS)


def run(arguments: argparse.Namespace) -> None:
    """Print prompt and continuation; ``RefusedError`` if that cannot be."""
    request = _read_request(arguments)
    folder, manifest = find_whole(arguments.checkpoint)
    config = saved_config(folder, manifest)
    tokens = text_tokens(saved_tokenizer(folder, manifest, given=arguments.tokenizer))
    prompt = prompt_ids(tokens, request.prompt)
    if request.num_tokens is None:
        room = config.model.max_position_embeddings - len(prompt)
        request = request._replace(num_tokens=max(min(_MOST_BY_ITSELF, room), 1))
    refuse_if_any([*_find_misfits(request, config, len(prompt))])
    found = _continuations(request, folder, manifest, config=config, tokens=tokens, prompt=prompt)
    if arguments.format == "text" and arguments.output is None and request.num_samples == 1:
        _stream(request.prompt, (continuation(tokens, prompt, ids[0]) for ids in found))
        return
    samples = deque(found, maxlen=1).pop()
    texts = [continuation(tokens, prompt, ids) for ids in samples]
    if arguments.format == "text":
        write(_as_text(request, texts), arguments.output)
    else:
        lengths = [len(until_end(ids, tokens.end_of_document)) for ids in samples]
        write(_as_json(request, manifest, texts, lengths), arguments.output)


def _read_request(arguments: argparse.Namespace) -> _Request:
    """``RefusedError`` with all that is wrong, whether there is such a checkpoint, too."""
    faults = find_output_faults(arguments, FORMATS)
    numbers: dict[str, Any] = {}
    for name, (read, allowed) in _NUMBERS.items():
        option, known = f"--{name.replace('_', '-')}", len(faults)
        text = getattr(arguments, name)
        if text is None:
            numbers[name] = None
            continue
        number = read_number(text, read, option=option, faults=faults, fallback=0)
        numbers[name] = number
        if len(faults) == known and not (abs(number) < float("inf") and allowed.holds(number)):
            faults.append(f"{option} {number} must be {allowed}")
    try:
        find_steps(arguments.checkpoint)
    except RefusedError as refused:
        faults += refused.faults
    refuse_if_any(faults)
    return _Request(_read_prompt(arguments.prompt), **numbers)


def _read_prompt(given: str) -> str:
    try:
        prompt = sys.stdin.read() if given == _STDIN else given
        prompt.encode()  # what was no UTF-8 on the command line cannot be written as such
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise RefusedError([f"--prompt must be text in UTF-8, but: {error.reason}"]) from error
    return prompt


def _find_misfits(request: _Request, config: Config, prompt_length: int) -> Iterator[str]:
    """What this model cannot do."""
    assert request.num_tokens is not None, "it is settled when the model is known"
    model, longest = config.model, config.model.max_position_embeddings
    room = longest - prompt_length
    if request.num_tokens > room:
        remedy = f"use at most --num-tokens {room}" if room > 0 else f"shorten it to {longest - 1} or fewer"
        yield (
            f"the prompt of {prompt_length} tokens and --num-tokens {request.num_tokens} must fit into the "
            f"{longest} positions of the model (max_position_embeddings); {remedy}"
        )
    if request.pp > model.num_hidden_layers:
        yield f"--pp {request.pp} must be at most {model.num_hidden_layers}, the number of layers"
    shared = {
        "heads": model.num_attention_heads,
        "kv heads": model.kv_heads,
        "inner features": model.intermediate_size,
    }
    for what, number in shared.items():
        if number % request.tp:
            yield f"--tp {request.tp} must divide the model's {number} {what}; use 1"


def _continuations(
    request: _Request,
    folder: Path,
    manifest: Manifest,
    *,
    config: Config,
    tokens: TextTokens,
    prompt: Sequence[int],
) -> Iterator[Any]:
    """The new tokens of all samples so far, again and again; stderr says what is done before the first."""
    assert request.num_tokens is not None, "it is settled when the model is known"
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with leaving_at_once("jaxpipe generate"), console.status("loading JAX") as status:
        from jaxpipe.pipeline.sampling import Sampling
        from jaxpipe.training.generation.continuation import continue_prompt

        pieces = continue_prompt(
            folder,
            manifest,
            config,
            prompt=prompt,
            num_samples=request.num_samples,
            num_tokens=request.num_tokens,
            sampling=Sampling(request.temperature, request.top_p, tokens.num_ids),
            end=tokens.end_of_document,
            seed=request.seed,
            pp=request.pp,
            tp=request.tp,
            on_activity=status.update,
        )
        first = next(pieces)
    with leaving_at_once("jaxpipe generate"):
        yield first
        yield from pieces


def _stream(prompt: str, texts: Iterator[str]) -> None:
    """Each time what is new; the last bytes may be half a character, which waits for its other half."""
    shown = printable if sys.stdout.isatty() else str
    text = written = ""
    for number, text in enumerate(texts):
        whole = text.rstrip(_HALF_A_CHARACTER)
        sys.stdout.write(shown((prompt if number == 0 else "") + whole[len(written) :]))
        sys.stdout.flush()
        written = whole
    sys.stdout.write(shown(text[len(written) :]) + "\n")


def _as_text(request: _Request, texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return f"{request.prompt}{texts[0]}\n"
    return "".join(
        f"--- {number} of {len(texts)}\n{request.prompt}{text}\n"
        for number, text in enumerate(texts, start=1)
    )


def _as_json(request: _Request, manifest: Manifest, texts: Sequence[str], lengths: Sequence[int]) -> str:
    """``text`` is the continuation alone; it has fewer tokens where the model has ended the document."""
    record = {
        "step": manifest.step,
        "prompt": request.prompt,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "samples": [
            {"text": text, "num_tokens": length} for text, length in zip(texts, lengths, strict=True)
        ],
    }
    return json.dumps(record, indent=2) + "\n"
