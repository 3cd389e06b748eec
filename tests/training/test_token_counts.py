"""The loss is a mean over tokens of the global batch, however they are spread over copies and microbatches.

A mean of the means of copies or of microbatches would be another number here, and so would its gradients.
"""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.lowering import lower
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Layout,
    LossAndGradients,
    Program,
    Settings,
    Sharding,
    balanced_layers,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.schedules import build
from jaxpipe.training.grad_norm import make_global_norm
from jaxpipe.training.step import to_microbatches

QUICK = {"xla_backend_optimization_level": 0}

SEQUENCE = 16

COUNTS = (16, 1, 7, 16, 3, 0, 12, 9)
"""Valid tokens of eight sequences: those of both copies of each of four microbatches."""

CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=20,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    initializer_range=0.2,
)

TOLERANCE = 1e-5
"""Of the numerics contract; a mean of means is off by more than 1e-2 here."""


def make_text(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens, labels = (rng.integers(0, 50, (len(counts), SEQUENCE), np.int32) for _ in range(2))
    for row, count in enumerate(counts):
        labels[row, rng.permutation(SEQUENCE)[count:]] = -100
    return tokens, labels


def step(
    counts: tuple[int, ...], *, dp: int, pp: int, tp: int = 1, m: int, zero: int = 0, schedule: str = "1f1b"
) -> tuple[LossAndGradients, float]:
    """Loss and canonical gradients, and their norm as the mesh forms it."""
    contract = llama_contract(CONFIG, "einsum")
    mesh = jax.make_mesh(
        (dp, pp, tp),
        ("dp", "pp", "tp"),
        axis_types=(AxisType.Auto,) * 3,
        devices=jax.devices()[: dp * pp * tp],
    )
    order = build(schedule, num_ranks=pp, num_microbatches=m)
    sharding = Sharding(tp=tp, zero=zero, sequence=tp > 1, splits=contract.splits)
    layout = Layout(order.placement, balanced_layers(4, order.placement.num_stages), 50, sharding)
    run = make_loss_and_gradients(Program(contract, lower(order), layout, mesh, Settings()))
    norm = make_global_norm(layout, mesh)
    params = to_stage_layout(init_llama(CONFIG, 0), layout)
    params = jax.device_put(params, stage_shardings(params, mesh, sharding))
    batch = to_microbatches(*make_text(counts), num_microbatches=m, mesh=mesh)
    constants = jax.device_put(llama_constants(CONFIG, SEQUENCE), NamedSharding(mesh, PartitionSpec()))

    def both(params, batch, constants):
        result = run(params, batch, constants)
        return result, norm(result.gradients).norm

    result, norm_value = (
        jax.jit(both).lower(params, batch, constants).compile(QUICK)(params, batch, constants)
    )
    loss, num_tokens, gradients = jax.device_get(result)
    return LossAndGradients(loss, num_tokens, to_canonical_layout(gradients, layout)), float(norm_value)


def assert_same(got: tuple[LossAndGradients, float], expected: tuple[LossAndGradients, float]) -> None:
    assert got[0].num_tokens == expected[0].num_tokens
    np.testing.assert_allclose(got[0].loss, expected[0].loss, rtol=TOLERANCE)
    np.testing.assert_allclose(got[1], expected[1], rtol=TOLERANCE)
    pairs = zip(jax.tree.leaves(got[0].gradients), jax.tree.leaves(expected[0].gradients), strict=True)
    for leaf, wanted in pairs:
        assert np.abs(leaf - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize(
    "mesh",
    [
        {"dp": 2, "pp": 1},
        {"dp": 2, "pp": 2, "zero": 1},
        {"dp": 2, "pp": 2, "tp": 2, "zero": 2},
        {"dp": 2, "pp": 4, "zero": 3, "schedule": "zb_h1"},
        {"dp": 2, "pp": 2, "schedule": "dualpipe"},
    ],
    ids=str,
)
def test_uneven_token_counts_give_what_one_device_and_one_microbatch_give(mesh: dict) -> None:
    got = step(COUNTS, m=4, **mesh)
    assert got[0].num_tokens == sum(COUNTS)
    assert_same(got, step(COUNTS, dp=1, pp=1, m=1))


def test_a_mean_of_means_would_be_seen() -> None:
    """So the test above can fail: the mean of the losses of single sequences is another number."""
    each = [float(step((count,), dp=1, pp=1, m=1)[0].loss) for count in (16, 1, 7)]
    together = float(step((16, 1, 7, 16, 3, 0, 12, 9), dp=1, pp=1, m=1)[0].loss)
    assert abs(np.mean(each) - together) > 100 * TOLERANCE * together


def test_without_any_valid_token_loss_and_gradients_are_zero() -> None:
    got, norm = step((0,) * 8, dp=2, pp=2, m=4)
    assert got.loss == 0
    assert norm == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(got.gradients))
