"""The parts of a stored array, read without JAX, make up what was saved."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.checkpoint.manifest import read_manifest
from jaxpipe.checkpoint.stored_parts import stored_parts
from jaxpipe.errors import CheckpointError

QUERY = "params.layers.query"


@pytest.fixture
def folder(state, tmp_path: Path) -> Path:
    """Saved by four ranks, each with two of the eight layers."""
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, state, {})
    return tmp_path / "3"


def test_each_part_is_what_one_device_had(folder: Path, state) -> None:
    stored = read_manifest(folder).arrays[QUERY]
    whole = np.full(stored.shape, np.nan, stored.dtype)
    parts = list(stored_parts(folder, QUERY, stored))
    for index, part in parts:
        assert np.isnan(whole[index]).all()
        whole[index] = part
    np.testing.assert_array_equal(whole, np.asarray(state["params"]["layers"]["query"]))
    assert [part.shape for _, part in parts] == [(2, 6, 10)] * 4


def test_an_array_that_is_not_as_the_manifest_says_is_an_error(folder: Path) -> None:
    stored = read_manifest(folder).arrays[QUERY]
    for name, record in (("params.odd", stored), (QUERY, stored._replace(shape=(8, 6, 11)))):
        with pytest.raises(CheckpointError, match=name):
            list(stored_parts(folder, name, record))


def test_reading_loads_no_jax(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from jaxpipe.checkpoint.manifest import read_manifest;"
        "from jaxpipe.checkpoint.stored_parts import stored_parts; folder = Path(sys.argv[1]);"
        f"stored = read_manifest(folder).arrays['{QUERY}'];"
        f"assert len(list(stored_parts(folder, '{QUERY}', stored))) == 4; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)]).returncode == 0
