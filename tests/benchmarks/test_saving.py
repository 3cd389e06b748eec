"""The benchmark of saving runs, and its figures hang together."""

import pytest

from benchmarks.saving import measure


@pytest.mark.slow
def test_a_short_measurement_has_all_figures(tmp_path):
    found = measure(tmp_path, num_rounds=1, num_steps=1)
    assert set(found["step_seconds"]) == {"none", "overlapped", "waited for"}
    assert found["blocked_seconds"][0] < found["written_seconds"][0]
    # a warm-up and a round with two saves each, then another warm-up and three
    assert [path.name for path in tmp_path.iterdir()] == ["7"]
    files = sum(path.stat().st_size for path in (tmp_path / "7").rglob("*") if path.is_file())
    assert found["state_bytes"] < files < 1.05 * found["state_bytes"]
