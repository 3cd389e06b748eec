"""The rules about text: files, tokenizer, mixture and split fit each other and the model.

They read what says something about the text (a manifest, a tokenizer), and never the text.
"""

from collections.abc import Iterator

from jaxpipe.data.prepared import row_of
from jaxpipe.data.rows import check_ids
from jaxpipe.data.sources import (
    find_tokenizer,
    fraction_faults,
    path_faults,
    prepared_folders,
    weight_faults,
)
from jaxpipe.data.tokenizer import Tokenizer
from jaxpipe.errors import InputError
from jaxpipe.units import counted

Path = str | tuple[str, ...] | None


def check_files(path: Path) -> Iterator[str]:
    """Every entry means some files, and prepared folders are whole."""
    yield from (f"data.path: {fault}" for fault in path_faults(path))


def check_weights(weights: tuple[float, ...] | None, path: Path) -> Iterator[str]:
    """A positive weight for each entry."""
    yield from weight_faults(path, weights)


def check_fraction(fraction: float | None, path: Path, eval_every: int) -> Iterator[str]:
    """Evaluations need validation text, and prepared text is split already."""
    if fraction == 0 and eval_every:
        yield (
            f"data.validation_fraction=0 leaves no text for train.eval_every={eval_every}; "
            "use 0.05, or train.eval_every=0"
        )
    elif _is_readable(path):
        yield from fraction_faults(path, fraction, evaluates=eval_every > 0)


def check_tokenizer(tokenizer: str | None, path: Path, end_of_document: str | None) -> Iterator[str]:
    """It can be read, and it is that of all prepared text."""
    if _is_readable(path):
        try:
            find_tokenizer(path, tokenizer, end_of_document)
        except InputError as error:
            yield f"data.tokenizer: {error}"


def check_vocabulary(
    vocab_size: int, tokenizer: str | None, path: Path, end_of_document: str | None
) -> Iterator[str]:
    """The model has a row for each id of the tokenizer."""
    if any(check_tokenizer(tokenizer, path, end_of_document)) or not _is_readable(path):
        return
    found = find_tokenizer(path, tokenizer, end_of_document)
    if vocab_size < found.vocab_size:
        yield (
            f"model.vocab_size={vocab_size} must be at least {found.vocab_size}: {_reason(found)}"
            f"{_outside(path, vocab_size)}"
        )


def check_sample(
    prompt: str | None,
    num_tokens: int,
    longest: int,
    tokenizer: str | None,
    path: Path,
    end_of_document: str | None,
) -> Iterator[str]:
    """The prompt is text, and it and its continuation are no longer than the model is meant for."""
    if prompt is None or any(check_tokenizer(tokenizer, path, end_of_document)) or not _is_readable(path):
        return
    try:
        text = prompt.encode("utf-8")
    except UnicodeEncodeError:
        yield f"train.sample_prompt={prompt!r} must be text, but its bytes are no UTF-8; correct it"
        return
    try:
        (ids,) = find_tokenizer(path, tokenizer, end_of_document).encode([text])
    except InputError as error:
        yield f"train.sample_prompt: {error}"
        return
    length = max(len(ids), 1)
    if length + num_tokens > longest:
        yield (
            f"train.sample_prompt of {counted(length, 'token')} and train.sample_tokens={num_tokens} must "
            f"fit into model.max_position_embeddings={longest}; shorten one of them"
        )


def _is_readable(path: Path) -> bool:
    """Whether all manifests are; if not, ``check_files`` says so."""
    try:
        prepared_folders(path)
    except InputError:
        return False
    return True


def _reason(tokenizer: Tokenizer) -> str:
    if tokenizer.is_bytes:
        return "a byte-level vocabulary has 256 bytes and one separator"
    return f"the vocabulary of {tokenizer.name} has so many ids"


def _outside(path: Path, vocab_size: int) -> str:
    """Where the first id is that the model would not know, if a manifest tells."""
    for folder, manifest in prepared_folders(path):
        try:
            rows = [row_of(folder, manifest, side) for side in ("training", "validation")]
            check_ids(rows, vocab_size=vocab_size)
        except InputError as error:
            return f"; {error}"
    return ""
