"""Where curves go besides ``metrics.jsonl`` is settled before JAX starts."""

import sys

import pytest

from jaxpipe.config import parse


@pytest.mark.parametrize(
    ("flags", "package"), [(["--run.tensorboard"], "tensorboardX"), (["--run.wandb", "demo"], "wandb")]
)
def test_what_is_not_installed_is_refused_with_how_to_install_it(
    write_yaml, refuse, monkeypatch, tmp_path, flags: list[str], package: str
) -> None:
    """A folder of that name where the run starts is no package: W&B makes one."""
    (tmp_path / "elsewhere" / package).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere")])
    monkeypatch.delitem(sys.modules, package, raising=False)
    said = refuse(write_yaml(), *flags)
    assert f"needs {package}, which is not installed; pip install {package} (the extra " in said


@pytest.mark.parametrize("project", ["a/b", "100%", "x" * 129])
def test_a_project_has_a_name_that_wandb_takes(write_yaml, refuse, project: str) -> None:
    pytest.importorskip("wandb")
    said = refuse(write_yaml(), "--run.wandb", project)
    assert f"run.wandb={project} must be a project's name" in said


def test_curves_go_nowhere_else_unless_asked(write_yaml, tmp_path) -> None:
    run = parse([write_yaml(), "--run.dir", str(tmp_path / "run")]).config.run
    assert (run.tensorboard, run.wandb, run.peak_flops) == (False, None, None)


def test_a_peak_is_above_zero(write_yaml, refuse) -> None:
    assert "run.peak_flops=0.0 must be above 0" in refuse(write_yaml(), "--run.peak_flops", "0")
