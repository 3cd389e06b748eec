"""Imports run one way: schedules <- lowering <- pipeline <- models <- config <- training <- cli."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxpipe"

OURS = {
    "schedules": {"schedules"},
    "solver": {"schedules", "solver"},
    "lowering": {"schedules", "lowering"},
    "pipeline": {"schedules", "lowering", "pipeline", "errors"},
    "models": {"schedules", "lowering", "pipeline", "models", "errors"},
    "data": {"data", "errors", "units"},
    "checkpoint": {"checkpoint", "errors", "units"},
    "pictures": {"schedules", "pictures"},
    "hugging_face": {"models", "data", "hugging_face", "errors", "units"},
    "curves": {"curves", "errors"},
    "planning": {"schedules", "models", "planning", "errors", "units"},
    "profiling": {
        *("schedules", "lowering", "pipeline", "models", "planning", "config", "training", "profiling"),
        "errors",
    },
}
"""What of ours each part may import; ``config``, ``training`` and ``cli`` stand above nearly all of these."""

THEIRS = {
    "schedules": set(),
    "pictures": set(),
    "planning": set(),
    "curves": {"matplotlib", "tensorboardX", "wandb"},
    "cli": {"rich", "numpy"},
    "solver": {"ortools"},
    "hugging_face": {"numpy", "ml_dtypes", "torch", "transformers"},
    "lowering": {"numpy", "jaxtyping"},
    "data": {"numpy", "grain", "tokenizers", "sentencepiece", "pyarrow"},
}
"""What else than the standard library, where that is restricted."""

SPLIT_VJP = PACKAGE / "pipeline" / "split_vjp.py"


def files_of(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names, also of imports inside functions; ``from a import b`` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("jaxpipe.")}


@pytest.mark.parametrize("part", OURS)
def test_a_part_imports_only_what_stands_below_it(part: str) -> None:
    assert files_of(part)
    for path in files_of(part):
        assert our_parts(path) <= OURS[part], path


@pytest.mark.parametrize("part", [*OURS, "config", "training"])
def test_nothing_imports_the_command(part: str) -> None:
    for path in files_of(part):
        assert "cli" not in our_parts(path), path


@pytest.mark.parametrize("part", THEIRS)
def test_schedules_and_lowering_need_no_framework(part: str) -> None:
    for path in files_of(part):
        foreign = (
            {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names) - {"jaxpipe"}
        )
        assert foreign <= THEIRS[part], path


def test_only_split_vjp_may_touch_what_is_private_in_jax() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == SPLIT_VJP:
            continue
        assert not any(name.startswith("jax._src") for name in imports_of(path)), path
        attributes = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        assert "_src" not in attributes, path


def test_every_folder_has_rules() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == {*OURS, "training", "config", "cli"}


@pytest.mark.parametrize(
    "module",
    [
        "jaxpipe",
        "jaxpipe.schedules",
        "jaxpipe.cli",
        "jaxpipe.lowering",
        "jaxpipe.data.prepare",
        "jaxpipe.hugging_face.reader",
        "jaxpipe.hugging_face.writer",
        "jaxpipe.cli.hugging_face.import_hf",
        "jaxpipe.cli.hugging_face.export_hf",
        "jaxpipe.cli.hugging_face.compare_hf",
        "jaxpipe.cli.plan",
        "jaxpipe.cli.profile",
    ],
)
def test_importing_it_loads_no_jax(module: str) -> None:
    program = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_importing_schedules_loads_no_numpy_either() -> None:
    program = "import sys, jaxpipe.schedules; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import jax._src.core", {"jax._src.core"}),
        ("def f():\n    from jaxpipe.training import step", {"jaxpipe.training.step"}),
        ("from jaxpipe import config", {"jaxpipe.config"}),
    ],
)
def test_the_rules_see_every_form_of_import(text: str, names: set[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert set(imports_of(path)) == names
