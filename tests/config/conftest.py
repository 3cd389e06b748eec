"""A small right configuration to spoil, and what the parser says to a wrong one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxpipe.config import parse

RIGHT: dict[str, dict[str, Any]] = {
    "model": {
        "vocab_size": 257,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "data": {"sequence_length": 16, "path": __file__},
    "mesh": {"dp": 2, "pp": 4},
    "pipeline": {"num_microbatches": 3},
    "train": {"num_steps": 5, "global_batch_size": 12},
    "optimizer": {"learning_rate": 1e-3},
}

WriteYaml = Callable[..., str]
Refuse = Callable[..., str]


@pytest.fixture
def write_yaml(tmp_path: Path) -> WriteYaml:
    """Write RIGHT with changes, ``{"train.num_steps": "many"}``, and give the file's path."""

    def write(changes: dict[str, Any] | None = None) -> str:
        tree = {section: dict(keys) for section, keys in RIGHT.items()}
        for path, value in (changes or {}).items():
            section, _, name = path.partition(".")
            tree.setdefault(section, {})[name] = value
        file = tmp_path / "right.yaml"
        file.write_text(yaml.safe_dump(tree))
        return str(file)

    return write


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Parse what must be refused with exit code 2, and give what was said on standard error."""

    def parse_and_fail(*argv: str) -> str:
        with pytest.raises(SystemExit) as exit_:
            parse(argv)
        said = capsys.readouterr()
        assert exit_.value.code == 2
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err

    return parse_and_fail
