"""What ``run.deterministic`` makes of XLA_FLAGS, and what it refuses."""

import pytest

from jaxpipe.config import parse
from jaxpipe.config.xla_flags import check_determinism, has_determinism, with_determinism

ON = "--xla_gpu_deterministic_ops=true"
OTHER = "--xla_force_host_platform_device_count=4"


@pytest.mark.parametrize(("flags", "wanted"), [("", ON), ("  ", ON), (OTHER, f"{OTHER} {ON}"), (ON, ON)])
def test_what_the_user_has_set_stays_and_the_missing_flag_comes(flags, wanted):
    assert list(check_determinism(True, flags)) == []
    assert with_determinism(flags) == wanted
    assert has_determinism(wanted)


@pytest.mark.parametrize("value", ["", "=true", "=1"])
def test_each_way_to_ask_for_it_counts(value):
    flags = f"{OTHER} --xla_gpu_deterministic_ops{value}"
    assert list(check_determinism(True, flags)) == []
    assert with_determinism(flags) == flags


def test_a_flag_that_only_begins_alike_is_another_one():
    assert not has_determinism("--xla_gpu_deterministic_ops_of_another_kind=false")
    assert not has_determinism("--xla_gpu_deterministic=false")


@pytest.mark.parametrize("flags", [f"{ON} {ON[:-4]}false", f"{OTHER} {ON[:-4]}0", f"{ON[:-4]}no"])
def test_a_flag_against_it_is_refused_by_name(flags):
    (fault,) = check_determinism(True, flags)
    assert "XLA_FLAGS has --xla_gpu_deterministic_ops=" in fault
    assert list(check_determinism(False, flags)) == []


def test_a_file_of_flags_is_refused():
    (fault,) = check_determinism(True, "flags.txt")
    assert "names a file" in fault


def test_the_environment_is_told_together_with_all_other_faults(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", f"{ON[:-4]}false")
    flags = ["--run.deterministic", "--run.step_timeout", "0", "--run.stop_timeout", "many"]
    with pytest.raises(SystemExit) as stopped:
        parse(["configs/tiny.yaml", "--run.dir", str(tmp_path / "run"), *flags])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    for words in ("3 faults", "run.deterministic needs", "run.step_timeout=0", "run.stop_timeout"):
        assert words in told
