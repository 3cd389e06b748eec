"""Text that ``jaxpipe data prepare`` has turned into tokens: a folder with a manifest, read and checked.

::

    DIR/
      manifest.json                    written last: what is here is whole
      plan.json                        of which files and settings it is made
      tokenizer/...                    a copy of the tokenizer's files; none for bytes
      shards/00000.training.tokens     ids behind each other, little-endian, two bytes each or four
      shards/00000.training.ends       where documents end: for each, 8 bytes, the tokens up to its end

To start from it takes the manifest and the sizes of the files, and reads none of them.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from jaxpipe.data.rows import Part, Place, Row
from jaxpipe.data.tokenizer import Tokenizer, load_tokenizer
from jaxpipe.errors import InputError

FORMAT = "jaxpipe tokens 1"
MANIFEST, PLAN, TOKENIZER, SHARDS = "manifest.json", "plan.json", "tokenizer", "shards"
SIDES = ("training", "validation")
END_BYTES = 8
"""Bytes of a number in a file of ends."""


@dataclass(frozen=True)
class Shard:
    """The tokens of one side that one unit of the text gave, in the files ``<name>.tokens`` and ``.ends``.

    documents: how many end in it.
    largest_at: how many tokens stand before the first of the largest ids.
    """

    name: str
    side: str
    tokens: int
    documents: int
    tokens_sha256: str
    ends_sha256: str
    largest_id: int
    largest_at: int


@dataclass(frozen=True)
class Manifest:
    """What a prepared folder holds; ``shards`` are in the order of the text."""

    dtype: str
    vocab_size: int
    end_of_document: int
    tokenizer: str
    tokenizer_file: str | None
    tokenizer_sha256: str
    end_of_document_token: str | None
    field: str
    validation_fraction: float
    text_bytes: int
    empty_documents: int
    shards: tuple[Shard, ...]

    def tokens(self, side: str) -> int:
        """How many tokens a side has."""
        return sum(shard.tokens for shard in self.shards if shard.side == side)

    def documents(self, side: str) -> int:
        """How many documents a side has."""
        return sum(shard.documents for shard in self.shards if shard.side == side)


def is_prepared(path: str) -> bool:
    """Whether this is a folder that ``jaxpipe data prepare`` has written, or has begun to write."""
    folder = Path(path).expanduser()
    try:
        return _says_so(folder / MANIFEST) or _says_so(folder / PLAN)
    except (OSError, RuntimeError, ValueError):  # of a long name, an unknown ~user, a null character
        return False


def read_manifest(folder: Path) -> Manifest:
    """``InputError`` if the folder is not finished, or is not what it was."""
    file = folder / MANIFEST
    if not file.exists():
        raise InputError(
            f"{folder} is not prepared to its end; run the same `jaxpipe data prepare` again, which goes on"
        )
    stat = file.stat()
    return _read_manifest(file, (stat.st_size, stat.st_mtime_ns))


def write_manifest(manifest: Manifest) -> str:
    """As text, of which ``read_manifest`` makes the same."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(manifest)}, indent=1) + "\n"


def tokenizer_of(folder: Path, manifest: Manifest) -> Tokenizer:
    """The copy that lies in the folder. ``InputError`` if it is not the one it was prepared with."""
    file = manifest.tokenizer_file
    path = None if file is None else str(folder / TOKENIZER / file)
    if path is not None and not Path(path).is_file():
        raise InputError(
            f"{path} is not there, the tokenizer that {folder} was prepared with; bring it back from a copy, "
            "or prepare the data once more"
        )
    found = load_tokenizer(path, end_of_document=manifest.end_of_document_token)
    if found.digest != manifest.tokenizer_sha256 or found.end_of_document != manifest.end_of_document:
        raise InputError(
            f"{folder / TOKENIZER} is not the tokenizer that {folder} was prepared with; "
            "bring it back from a copy, or prepare the data once more"
        )
    return found


def row_of(folder: Path, manifest: Manifest, side: str) -> Row:
    """All tokens of a side in one row. ``InputError`` names a file that is missing or of another size."""
    parts = tuple(_part(folder, manifest, shard) for shard in manifest.shards if shard.side == side)
    return Row(parts, "", manifest.end_of_document, manifest.vocab_size)


def tokens_file(folder: Path, shard: Shard) -> Path:
    """The file of the shard's ids."""
    return folder / SHARDS / f"{shard.name}.tokens"


def ends_file(folder: Path, shard: Shard) -> Path:
    """The file that says where its documents end."""
    return folder / SHARDS / f"{shard.name}.ends"


def size_fault(file: Path, size: int) -> str | None:
    """What is wrong with the size of a file, or None."""
    try:
        found = file.stat().st_size
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    return None if found == size else f"{file} has {found:,} bytes instead of {size:,}"


def _part(folder: Path, manifest: Manifest, shard: Shard) -> Part:
    file, dtype = tokens_file(folder, shard), np.dtype(manifest.dtype)
    fault = size_fault(file, shard.tokens * dtype.itemsize)
    fault = fault or size_fault(ends_file(folder, shard), shard.documents * END_BYTES)
    if fault:
        raise InputError(f"{fault}; bring it back from a copy, or prepare the data once more")
    largest = Place(shard.largest_id, str(file), shard.largest_at)
    return Part(file, shard.tokens, dtype, str(file), shard.tokens_sha256, largest)


def _says_so(file: Path) -> bool:
    """Whether the file begins as one of ours; it may be large."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return FORMAT.encode() in opened.read(64)


@lru_cache(maxsize=8)
def _read_manifest(file: Path, state: tuple[int, int]) -> Manifest:
    """``state`` changes with the file."""
    try:
        values: Any = json.loads(file.read_bytes())
        return _manifest(values)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; check its permissions") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is no manifest of prepared data ({error}); bring it back from a copy, or prepare the "
            "data once more"
        ) from error


def _manifest(values: Mapping[str, Any]) -> Manifest:
    if values["format"] != FORMAT:
        raise ValueError(f"its format is {values['format']!r}, not {FORMAT!r}")
    shards = tuple(Shard(**shard) for shard in values["shards"])
    others = {name: value for name, value in values.items() if name not in ("format", "shards")}
    manifest = Manifest(shards=shards, **others)
    _check_types(manifest)
    for shard in shards:
        _check_types(shard)
    if manifest.dtype not in ("<u2", "<u4"):
        raise ValueError(f"its dtype is {manifest.dtype!r}, neither '<u2' nor '<u4'")
    if not manifest.tokens(SIDES[0]) or not {shard.side for shard in shards} <= set(SIDES):
        raise ValueError(f"its shards must be of {' and '.join(SIDES)}, and the former hold tokens")
    return manifest


def _check_types(record: Manifest | Shard) -> None:
    """ValueError where a value is not of its field's type; counts are not negative."""
    for name, hint in get_type_hints(type(record)).items():
        value = getattr(record, name)
        kinds = tuple(get_origin(kind) or kind for kind in get_args(hint) or (hint,))
        if get_origin(hint) is tuple:
            kinds = (tuple,)
        elif hint is float:
            kinds = (float, int)
        is_right = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_right or (isinstance(value, int) and value < 0):
            raise ValueError(f"its {name} is {value!r}")
