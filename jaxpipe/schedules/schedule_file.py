"""A schedule that lies in a file instead of behind a name."""

import os
from pathlib import Path

from jaxpipe.schedules.csv_text import from_csv
from jaxpipe.schedules.schedule import Schedule

LARGEST_FILE = 20_000_000
"""Characters, several times what the largest schedule takes."""


def is_file(text: str) -> bool:
    """Whether what stands for a schedule means a file, not a name."""
    return text.endswith(".csv") or os.sep in text


def read_schedule_file(path: str) -> Schedule:
    """The schedule of a CSV file; ``ValueError`` says, beginning with the path, why there is none."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError("this is no regular file; name a CSV file or a schedule")
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError(f"a schedule has at most {LARGEST_FILE} characters; name another file")
        return from_csv(text, name=Path(path).stem)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{path!r} cannot be read: {reason}; name a CSV file or a schedule") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} must be text in UTF-8; save it so") from None
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from None
