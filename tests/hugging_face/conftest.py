"""Small Llamas of transformers, saved as it saves them, and the text of the runs that start from them."""

import pytest


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> str:
    """A few files, so that there are two sides."""
    folder = tmp_path_factory.mktemp("text")
    for index in range(12):
        words = " ".join(f"{index * step % 89:x}" for step in range(200 + 40 * index))
        (folder / f"{index}.txt").write_text(words)
    return str(folder)
