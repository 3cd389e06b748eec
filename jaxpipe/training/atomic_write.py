"""Replace a file whole: whenever it is read, and the writer killed, it is the old one or the new one."""

import os
from pathlib import Path

from jaxpipe.training.storage import storing


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path``, then rename it onto ``path``. Only one writer at a time.

    Raises:
        StorageError: it cannot be written; ``path`` is as it was.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        with storing(path):
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
