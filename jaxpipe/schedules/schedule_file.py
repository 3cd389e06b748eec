"""A schedule that lies in a file instead of behind a name."""

import os
from pathlib import Path

from jaxpipe.schedules.csv_text import from_csv
from jaxpipe.schedules.schedule import Schedule


def is_file(text: str) -> bool:
    """Whether what stands for a schedule means a file, not a name."""
    return text.endswith(".csv") or os.sep in text


def read_schedule_file(path: str) -> Schedule:
    """The schedule of a CSV file; ``ValueError`` says, beginning with the path, why there is none."""
    try:
        return from_csv(Path(path).read_text(encoding="utf-8"), name=Path(path).stem)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{path!r} cannot be read: {reason}; name a CSV file or a schedule") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} must be text in UTF-8; save it so") from None
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from None
