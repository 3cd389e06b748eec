"""The tokenizer of a run: its files are kept in the run's directory, and checkpoints name it.

So a checkpoint can be asked to write (``jaxpipe generate``), or become a model of Hugging Face, when the text
of the run has long gone. Loads nothing of JAX.
"""

from pathlib import Path
from typing import Any

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.data import Tokenizer, copy_tokenizer, load_tokenizer
from jaxpipe.errors import InputError
from jaxpipe.training.run_directory import RunDirectory, run_directory
from jaxpipe.training.storage import storing

INFO = "tokenizer"
"""Under this name a checkpoint's manifest says which it is."""


def keep_tokenizer(directory: RunDirectory, tokenizer: Tokenizer) -> None:
    """Copy its files; of bytes there are none.

    Raises:
        StorageError: they cannot be written.
    """
    with storing(directory.tokenizer):
        copy_tokenizer(tokenizer, directory.tokenizer)


def tokenizer_info(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint holds of it; JSON can hold that."""
    return {
        "file": tokenizer.files[0].name if tokenizer.files else None,
        "sha256": tokenizer.digest,
        "end_of_document": tokenizer.end_of_document_token,
    }


def saved_tokenizer(folder: Path, manifest: Manifest, *, given: str | None = None) -> Tokenizer:
    """That of the checkpoint in ``folder``, from the run's directory or the file ``given``.

    A checkpoint that names none is older than tokenizers are here, and of bytes.

    Raises:
        InputError: it is not there, or is another one.
    """
    info = manifest.info.get(INFO, {"file": None, "sha256": load_tokenizer(None).digest})
    path = given
    if path is None and info["file"] is not None:
        path = str(run_directory(folder.parent.parent).tokenizer / info["file"])
    found = load_tokenizer(path, end_of_document=info.get("end_of_document") if path else None)
    if found.digest != info["sha256"]:
        name = info["file"] or "bytes"
        raise InputError(
            f"{path or 'bytes'} must be the tokenizer of {folder}, {name} ({info['sha256'][:12]}), but it is "
            f"{found.name} ({found.digest[:12]}); give the one that the run had"
        )
    return found
