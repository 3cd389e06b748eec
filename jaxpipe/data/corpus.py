"""Text that is read and encoded when the run starts, split once into training and validation.

Files go to one side or the other by the hash of their names: neither the seed, nor the machine, nor
the files beside them move them. A single file is cut instead: its last documents, or the tail of its
only one, are the validation text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxpipe.data.cuts import character_start
from jaxpipe.data.documents import read_documents
from jaxpipe.data.files import TextFile, find_files
from jaxpipe.data.tokenizer import Tokenizer, byte_tokenizer, encode_documents
from jaxpipe.data.tokens import Tokens
from jaxpipe.errors import InputError

Documents = list[bytes]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of both sides, one row each; ``summary`` says in a sentence how the text was split."""

    training: Tokens
    validation: Tokens
    summary: str


def load_corpus(
    path: str | Sequence[str] | None = None,
    *,
    field: str = "text",
    validation_fraction: float = 0.05,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Read the files that ``path`` means (None: Python's standard library) and split them.

    About ``validation_fraction`` of the files, but at least one document, is kept for validation;
    with 0 there is none. Without ``tokenizer`` tokens are bytes. ``InputError`` if there is no text, or too
    little to split.
    """
    tokenizer = tokenizer or byte_tokenizer()
    files = find_files(path)
    read = {file: read_documents(file, field=field) for file in files}
    texts = {file: documents for file, documents in read.items() if documents}
    if not texts:
        which = f"{len(files)} files hold" if len(files) > 1 else "the only file holds"
        raise InputError(f"{which} no text; give files that do in data.path")
    if validation_fraction == 0:
        training = encode_documents(tokenizer, _join(texts))
        return Corpus(training, training[:0], f"{len(training):,} tokens for training (no validation text)")
    if len(texts) == 1:
        (file, documents), *_ = texts.items()
        first, last, rule = _cut(file, documents, validation_fraction, is_bytes=tokenizer.is_bytes)
    else:
        first, last, rule = _split_by_name(texts, fraction=validation_fraction)
    sides = encode_documents(tokenizer, first), encode_documents(tokenizer, last)
    sizes = f"{len(sides[0]):,} tokens for training, {len(sides[1]):,} for validation"
    return Corpus(*sides, f"{sizes} ({rule})")


def name_share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone; below the fraction means validation."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def tail(total: int, fraction: float) -> int:
    """How many of ``total`` are the tail, with at least one on both sides."""
    return min(max(round(total * fraction), 1), total - 1)


def _split_by_name(
    texts: Mapping[TextFile, Documents], *, fraction: float
) -> tuple[Documents, Documents, str]:
    by_share = sorted(texts, key=lambda file: (name_share(file.name), file))
    wanted = sum(name_share(file.name) < fraction for file in by_share)
    kept = set(by_share[: min(max(wanted, 1), len(by_share) - 1)])
    training = {file: documents for file, documents in texts.items() if file not in kept}
    validation = {file: documents for file, documents in texts.items() if file in kept}
    rule = f"{len(training):,} and {len(validation):,} files, by the hash of their names"
    return _join(training), _join(validation), rule


def _cut(
    file: TextFile, documents: Documents, fraction: float, *, is_bytes: bool
) -> tuple[Documents, Documents, str]:
    if len(documents) > 1:
        count = tail(len(documents), fraction)
        rule = (
            f"one file: its last {count:,} of {len(documents):,} documents {_are(count)} the validation text"
        )
        return documents[:-count], documents[-count:], rule
    text = documents[0]
    if len(text) < 2:
        raise InputError(f"{file.path} holds a single byte, too little to split; give more text in data.path")
    cut = len(text) - tail(len(text), fraction)
    if not is_bytes:
        cut = character_start(text, cut)
    count = len(text) - cut
    rule = f"one document: its last {count:,} of {len(text):,} bytes {_are(count)} the validation text"
    return [text[:-count]], [text[-count:]], rule


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _join(texts: Mapping[TextFile, Documents]) -> Documents:
    return [document for documents in texts.values() for document in documents]
