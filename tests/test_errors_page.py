"""docs/errors.md quotes what the code says: a reader who looks for a message finds the one that there is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

QUOTED = [line for block in re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL) for line in block.split("\n")]


def sentences(path: Path) -> Iterator[str]:
    """Every text of a module, with an ellipsis for each value that is put in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


SENTENCES = "\n".join(text for path in (ROOT / "jaxpipe").rglob("*.py") for text in sentences(path))


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) >= 15


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_on_the_page_is_one_of_the_code(message: str) -> None:
    assert message in SENTENCES
