"""A text, and configurations of small runs on it."""

import pytest
from run_design import make_run


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> str:
    """A few files, so that there are two sides and documents shorter than a sample."""
    folder = tmp_path_factory.mktemp("text")
    for index in range(12):
        words = " ".join(f"{index * step % 89:x}" for step in range(20 + 40 * index))
        (folder / f"{index}.txt").write_text(words)
    return str(folder)


@pytest.fixture
def make_config(text, tmp_path):
    """``make_config(name, section__key=value)``: a run in a directory of that name."""
    return lambda name, **changes: make_run(tmp_path / name, text, **changes)
