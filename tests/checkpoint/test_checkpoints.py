"""Values, shardings and steps survive; what does not fit is refused."""

import time
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.errors import DamagedError, InputError


def bits(tree):
    """Host copies that compare bit by bit: NaN equals itself, 0.0 differs from -0.0."""
    return jax.tree.map(lambda x: np.asarray(x).copy().view(f"u{x.dtype.itemsize}"), tree)


def buffers(tree) -> set[int]:
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return {shard.data.unsafe_buffer_pointer() for shard in shards}


@partial(jax.jit, donate_argnums=0)
def train_step(state):
    return jax.tree.map(lambda x: x * 2 + 1, state)


def test_restore_gives_what_was_saved_to_the_bit(tmp_path: Path, state, like):
    odd = np.array([-0.0, 1e-42, -1e-42, 3.4e38, -3.4e38, 0.1], np.float32)
    state["odd"] = jax.device_put(odd, state["params"]["embedding"].sharding)
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(3, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(3, like(state))
    chex.assert_trees_all_equal(bits(restored), bits(state))


def test_saving_what_was_restored_changes_nothing(tmp_path: Path, state, like):
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        checkpoints.save(2, checkpoints.restore(1, like(state)), {})
        checkpoints.wait()
        chex.assert_trees_all_equal(bits(checkpoints.restore(2, like(state))), bits(state))


@pytest.mark.parametrize(("pp", "dp"), [(1, 1), (2, 4), (8, 1), (1, 3)])
def test_any_mesh_reads_what_another_wrote(tmp_path: Path, state, state_on, like, pp, dp):
    wanted = like(state_on(pp, dp, seed=1))
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(1, wanted)
    chex.assert_trees_all_equal(bits(restored), bits(state))
    for leaf, asked in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding == asked.sharding
        assert leaf.dtype == asked.dtype


def test_restore_works_under_an_active_mesh(tmp_path: Path, state, like):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        with jax.set_mesh(state["params"]["embedding"].sharding.mesh):
            checkpoints.save(1, state, {})
            checkpoints.wait()
            restored = checkpoints.restore(1, like(state))
        chex.assert_trees_all_equal(bits(restored), bits(state))


def test_all_replicas_of_a_restored_array_are_equal(tmp_path: Path, state, like):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(1, like(state))
    host = bits(state)
    for leaf, whole in zip(jax.tree.leaves(restored), jax.tree.leaves(host), strict=True):
        assert len(leaf.addressable_shards) == 8
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(bits(shard.data), whole[shard.index])


def test_restored_arrays_can_be_donated(tmp_path: Path, state, like):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(1, like(state))
    before = buffers(restored)
    after = train_step(restored)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(restored))
    assert buffers(after) == before


def test_arrays_can_be_donated_as_soon_as_save_returns(tmp_path: Path, state, like):
    expected = bits(state)
    wanted = like(state)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        for _ in range(3):
            state = train_step(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        chex.assert_trees_all_equal(bits(checkpoints.restore(1, wanted)), expected)


def test_info_comes_back_unchanged(tmp_path: Path, state):
    info = {"step": 3, "data": {"position": 2**60, "order": [1, 2]}, "seed": 0, "config": None, "loss": 0.1}
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, state, info)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.read_manifest(3).info == info


@pytest.mark.parametrize("info", [{"order": (1, 2)}, {"data": {1: 2}}, {1: 2}, {"loss": float("nan")}])
def test_info_that_json_would_change_is_refused(tmp_path: Path, state, info):
    with open_checkpoints(tmp_path, keep=1) as checkpoints, pytest.raises(ValueError, match="JSON"):
        checkpoints.save(1, state, info)
    assert not list(tmp_path.iterdir())


def test_a_leaf_that_is_no_array_is_refused(tmp_path: Path, state):
    state["adam"]["count"] = 3
    with (
        open_checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(ValueError, match=r"adam\.count is int"),
    ):
        checkpoints.save(1, state, {})


def test_two_leaves_of_one_name_are_refused(tmp_path: Path):
    arrays = {"a.b": jnp.zeros(2), "a": {"b": jnp.ones(2)}}
    with (
        open_checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(ValueError, match=r"two are 'a\.b'"),
    ):
        checkpoints.save(1, arrays, {})


@pytest.mark.parametrize("step", [1, 5])
def test_a_step_at_or_below_the_latest_is_refused(tmp_path: Path, state, step):
    with open_checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(5, state, {})
        with pytest.raises(ValueError, match=rf"step={step}, but .* holds 5"):
            checkpoints.save(step, state, {})
        checkpoints.save(6, state, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6"]


def test_a_step_that_is_not_there_is_refused(tmp_path: Path, state, like):
    with open_checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(5, state, {})
        checkpoints.wait()
        with pytest.raises(DamagedError, match="it has no manifest"):
            checkpoints.read_manifest(4)
        with pytest.raises(DamagedError, match="it has no manifest"):
            checkpoints.restore(4, like(state))


def test_two_megabytes_are_saved_and_restored_in_a_second(tmp_path: Path, state_on, like):
    state = {f"copy_{seed}": state_on(4, 2, seed)["params"] for seed in range(3)}
    state["large"] = jax.device_put(jnp.ones((128, 4096)), state["copy_0"]["embedding"].sharding)
    wanted = like(state)
    seconds = []
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        for step in range(3):
            start = time.perf_counter()
            checkpoints.save(step, state, {})
            checkpoints.wait()
            jax.block_until_ready(checkpoints.restore(step, wanted))
            seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0  # about 0.2 s on one core; the slack is for a busy machine


def test_twenty_saves_do_not_grow_host_memory(tmp_path: Path, state):
    megabytes = 16
    large = {"large": jax.device_put(jnp.ones((megabytes, 2**18)), state["params"]["embedding"].sharding)}
    resident = []
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        for step in range(20):
            checkpoints.save(step, large, {})
            checkpoints.wait()
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
    assert resident[-1] - resident[2] < megabytes / 2


def mismatches(state, like):
    """For each kind of mismatch: what the run asks for and what the message must say."""
    query = state["params"]["layers"]["query"]

    def asking(**leaves):
        wanted = like(state)
        for name, leaf in leaves.items():
            wanted["params"]["layers"][name] = leaf
        return wanted

    def struct(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=query.sharding)

    fewer = like(state)
    del fewer["params"]["layers"]["norm"]
    stored = r"params\.layers\.query: float32\[8, 6, 10\] in the checkpoint, "
    return {
        "dtype": (
            asking(query=struct((8, 6, 10), jnp.bfloat16)),
            stored + r"bfloat16\[8, 6, 10\] in this run",
        ),
        "shape": (asking(query=struct((8, 6, 12), "float32")), stored + r"float32\[8, 6, 12\] in this run"),
        "fewer layers": (
            asking(query=struct((4, 6, 10), "float32")),
            stored + r"float32\[4, 6, 10\] in this run",
        ),
        "new": (
            asking(key=struct((8, 2), "float32")),
            r"layers\.key: absent in the checkpoint, float32\[8, 2\]",
        ),
        "gone": (fewer, r"params\.layers\.norm: float32\[8, 6\] in the checkpoint, absent in this run"),
        "unsharded": (
            asking(query=jax.ShapeDtypeStruct((8, 6, 10), "float32")),
            "sharding, which .*query lacks",
        ),
    }


@pytest.mark.parametrize("kind", ["dtype", "shape", "fewer layers", "new", "gone", "unsharded"])
def test_arrays_that_differ_are_refused_with_both_sides(tmp_path: Path, state, like, kind):
    wanted, message = mismatches(state, like)[kind]
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        with pytest.raises(ValueError if kind == "unsharded" else InputError, match=message):
            checkpoints.restore(1, wanted)


def test_all_differences_are_named_at_once(tmp_path: Path, state, like):
    halves = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float16, sharding=x.sharding), like(state)
    )
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        with pytest.raises(ValueError, match=r"(?s)adam\.count.*adam\.mu\.embedding.*params\.layers\.query"):
            checkpoints.restore(1, halves)
