"""What a run trains on: prepared folders and text, as one row, or by weights as a mixture of several.

Without weights all entries of the list of paths are one text. With weights each entry is a source with a
weight, an order and epochs of its own. All sources have the same tokenizer: the one that is given, or the
copy that lies in a prepared folder, or bytes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.data.corpus import load_corpus
from jaxpipe.data.files import find_files
from jaxpipe.data.prepared import SIDES, Manifest, is_prepared, read_manifest, row_of, tokenizer_of
from jaxpipe.data.rows import Part, Row, check_ids, parts_of
from jaxpipe.data.tokenizer import Tokenizer, load_tokenizer
from jaxpipe.errors import InputError

Paths = str | Sequence[str] | None

DEFAULT_FRACTION = 0.05
"""Share of text that is kept for validation where nobody says so."""


@dataclass(frozen=True, eq=False)
class Sources:
    """A row for each weight on both sides, or one where there are none.

    summary: in a sentence, how many tokens there are and how they were split.
    """

    training: tuple[Row, ...]
    validation: tuple[Row, ...]
    weights: tuple[float, ...] | None
    tokenizer: Tokenizer
    summary: str


def open_sources(
    path: Paths,
    *,
    field: str = "text",
    validation_fraction: float | None = None,
    tokenizer: str | None = None,
    end_of_document: str | None = None,
    weights: Sequence[float] | None = None,
    vocab_size: int,
) -> Sources:
    """Read and encode what is text, and map what is prepared, in a time that does not depend on its size.

    ``InputError`` if there is no text, sources do not fit each other, or a token is not below ``vocab_size``.
    """
    loaded = find_tokenizer(path, tokenizer, end_of_document)
    faults = [*weight_faults(path, weights), *fraction_faults(path, validation_fraction)]
    if faults:
        raise InputError("; ".join(faults))
    fraction = DEFAULT_FRACTION if validation_fraction is None else validation_fraction
    groups = _groups(path, is_mixture=weights is not None)
    opened = [[_open(entry, field, fraction, loaded) for entry in group] for group in groups]
    names = ["" if weights is None else str(group[0]) for group in groups]
    training, validation = (
        tuple(
            Row(
                tuple(part for entry in group for part in entry.sides[side]),
                name,
                loaded.end_of_document,
                loaded.vocab_size,
            )
            for group, name in zip(opened, names, strict=True)
        )
        for side in range(2)
    )
    check_ids([*training, *validation], vocab_size=vocab_size)
    summaries = [entry.summary for group in opened for entry in group]
    return Sources(
        training, validation, None if weights is None else tuple(weights), loaded, "; ".join(summaries)
    )


def find_tokenizer(path: Paths, tokenizer: str | None, end_of_document: str | None) -> Tokenizer:
    """That of a run with these settings: the one given, else the copy in a prepared folder, else bytes.

    ``InputError`` names two that differ.
    """
    folders = prepared_folders(path)
    if tokenizer is None and folders:
        found, where = tokenizer_of(*folders[0]), str(folders[0][0])
        if end_of_document not in (None, found.end_of_document_token):
            raise InputError(
                f"{where} was prepared with {found.end_of_document_token!r} between documents, not with "
                f"{end_of_document!r}; leave data.end_of_document out, or prepare the data once more"
            )
    else:
        found, where = load_tokenizer(tokenizer, end_of_document=end_of_document), str(tokenizer)
    for folder, manifest in folders:
        theirs = manifest.tokenizer_sha256, manifest.end_of_document
        if theirs != (found.digest, found.end_of_document):
            raise InputError(
                f"all text of a run has one tokenizer, but {folder} was prepared with {manifest.tokenizer} "
                f"({_identity(*theirs)}), and {where} is {found.name} "
                f"({_identity(found.digest, found.end_of_document)}); leave data.tokenizer out, or prepare "
                "the data once more"
            )
    return found


def path_faults(path: Paths) -> Iterator[str]:
    """Entries that mean nothing, and prepared folders that are not whole."""
    texts = [entry for entry in _entries(path) if not is_prepared(entry)]
    folders = [str(Path(entry).expanduser().resolve()) for entry in _entries(path) if is_prepared(entry)]
    for folder in sorted({folder for folder in folders if folders.count(folder) > 1}):
        yield f"{folder} is given {folders.count(folder)} times; name it once, and weigh it with data.weights"
    for entry in _entries(path):
        if is_prepared(entry):
            try:
                manifest = read_manifest(Path(entry).expanduser())
                for side in SIDES:
                    row_of(Path(entry).expanduser(), manifest, side)
            except InputError as error:
                yield str(error)
    if path is None or texts or not _entries(path):
        try:
            find_files(None if path is None else texts)
        except InputError as error:
            yield str(error)


def weight_faults(path: Paths, weights: Sequence[float] | None) -> Iterator[str]:
    """Weights must be one for each entry, and above 0."""
    count = len(_entries(path)) if path is not None else 1
    if weights is None:
        return
    given = f"data.weights={list(weights)}"
    if len(weights) != count:
        yield f"{given} must have as many weights as data.path has entries, {count}"
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        yield f"{given} must be finite and above 0; leave an entry out that is not to be read"


def fraction_faults(path: Paths, fraction: float | None, *, evaluates: bool = False) -> Iterator[str]:
    """A share of validation text that is not the one of prepared data; or none where some is needed."""
    for folder, manifest in prepared_folders(path):
        prepared = manifest.validation_fraction
        if fraction is not None and fraction != prepared:
            yield (
                f"data.validation_fraction={fraction} is not {prepared}, with which {folder} was prepared; "
                "leave it out, or prepare the data once more"
            )
        elif evaluates and prepared == 0:
            yield (
                f"{folder} was prepared with --validation-fraction 0, which leaves no text for evaluations; "
                "use train.eval_every=0, or prepare the data once more"
            )


def prepared_folders(path: Paths) -> list[tuple[Path, Manifest]]:
    """The entries that are prepared, each with its manifest."""
    folders = [Path(entry).expanduser() for entry in _entries(path) if is_prepared(entry)]
    return [(folder, read_manifest(folder)) for folder in folders]


@dataclass(frozen=True, eq=False)
class _Opened:
    sides: tuple[tuple[Part, ...], tuple[Part, ...]]
    summary: str


def _entries(path: Paths) -> tuple[str, ...]:
    return () if path is None else (path,) if isinstance(path, str) else tuple(path)


def _groups(path: Paths, *, is_mixture: bool) -> list[list[str | tuple[str, ...] | None]]:
    """What is opened together, for each row: with weights one entry, else all.

    Entries of text that are one row are read as one list, where the first of them stands, so that the split
    is that of all their files.
    """
    entries = _entries(path)
    if path is None or not entries:
        return [[path if path is None else entries]]
    if is_mixture:
        return [[entry] for entry in entries]
    texts = tuple(entry for entry in entries if not is_prepared(entry))
    group: list[str | tuple[str, ...] | None] = []
    for entry in entries:
        if is_prepared(entry):
            group.append(entry)
        elif texts not in group:
            group.append(texts)
    return [group]


def _open(entry: str | tuple[str, ...] | None, field: str, fraction: float, tokenizer: Tokenizer) -> _Opened:
    if isinstance(entry, str) and is_prepared(entry):
        folder = Path(entry).expanduser()
        manifest = read_manifest(folder)
        training, validation = (row_of(folder, manifest, side).parts for side in ("training", "validation"))
        sizes = f"{manifest.tokens('training'):,} tokens for training, {manifest.tokens('validation'):,}"
        return _Opened((training, validation), f"{sizes} for validation (prepared in {folder})")
    corpus = load_corpus(entry, field=field, validation_fraction=fraction, tokenizer=tokenizer)
    sides = (
        parts_of(corpus.training, name="the training text"),
        parts_of(corpus.validation, name="the validation text"),
    )
    return _Opened(sides, corpus.summary)


def _identity(digest: str, end_of_document: int) -> str:
    return f"{digest[:12]}, end of document {end_of_document}"
