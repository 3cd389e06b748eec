"""A run's tokenizer beside its exported weights, under the names by which transformers finds it."""

import json
import shutil
from pathlib import Path
from typing import Any

from jaxpipe.data import Tokenizer

CONFIG = "tokenizer_config.json"
NAMES = ("tokenizer.json", "tokenizer.model")
"""What a folder of Hugging Face calls its tokenizer, the first that there is."""


def put_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Copy the files into ``folder``; of bytes there are none.

    A file of the tokenizers library says all but which token ends a document, and that transformers is to
    take it as it is: that stands in a tokenizer_config.json, which is written where the run has none.
    """
    for file in tokenizer.files:
        name = file.name if file.name == CONFIG else f"tokenizer{file.suffix}"
        shutil.copyfile(file, folder / name)
    config = folder / CONFIG
    if tokenizer.files and tokenizer.files[0].suffix == ".json":
        fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if config.exists():
            fields = json.loads(config.read_text(encoding="utf-8"))
        fields["eos_token"] = tokenizer.end_of_document_token
        config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def find_tokenizer_file(directory: Path) -> str | None:
    """The file of the tokenizer in a folder of Hugging Face, if there is one."""
    return next((str(directory / name) for name in NAMES if (directory / name).is_file()), None)
