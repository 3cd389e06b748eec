"""Packed documents that are isolated do not see each other: to the bit, in loss and gradients."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.lowering import lower
from jaxpipe.models.attention import Implementation
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
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
from jaxpipe.pipeline.remat import Remat
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.pipeline.split_vjp import split_layer
from jaxpipe.schedules import build
from jaxpipe.training.reference import reference_loss, reference_loss_and_gradients
from jaxpipe.training.step import to_microbatches

QUICK = {"xla_backend_optimization_level": 0}

SEQUENCE = 16

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

LENGTHS = ((5, 4, 7), (1, 9, 6), (16,), (3, 3, 3, 7), (8, 8), (2, 14), (7, 1, 8), (4, 12))
"""Of the documents in each of eight samples; only the first document of a sample is changed."""


def make_text(lengths: tuple[tuple[int, ...], ...]) -> dict[str, np.ndarray]:
    """Samples with labels in all documents but the first."""
    rng = np.random.default_rng(0)
    shape = (len(lengths), SEQUENCE)
    tokens, labels = (rng.integers(0, 50, shape, np.int32) for _ in range(2))
    segments = np.stack([np.repeat(np.arange(len(row)), row) for row in lengths]).astype(np.int32)
    positions = np.stack([np.concatenate([np.arange(length) for length in row]) for row in lengths])
    labels = np.where(segments == 0, -100, labels).astype(np.int32)
    return {"tokens": tokens, "labels": labels, "segments": segments, "positions": positions.astype(np.int32)}


TEXT = make_text(LENGTHS)


def with_other_first_documents(text: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(text, tokens=np.where(text["segments"] == 0, 49 - text["tokens"], text["tokens"]))


def without_isolation(text: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: text[name] for name in ("tokens", "labels")}


class Step:
    """A compiled step of one mesh and schedule, on samples of any text."""

    def __init__(
        self, schedule: str, *, dp: int = 1, pp: int = 1, tp: int = 1, zero: int = 0, remat: Remat = "full"
    ):
        contract = llama_contract(CONFIG, "einsum")
        self.mesh = jax.make_mesh(
            (dp, pp, tp),
            ("dp", "pp", "tp"),
            axis_types=(AxisType.Auto,) * 3,
            devices=jax.devices()[: dp * pp * tp],
        )
        order = build(schedule, num_ranks=pp, num_microbatches=4)
        sharding = Sharding(tp=tp, zero=zero, sequence=tp > 1, splits=contract.splits)
        self.layout = Layout(order.placement, balanced_layers(4, order.placement.num_stages), 50, sharding)
        self.run = make_loss_and_gradients(
            Program(contract, lower(order), self.layout, self.mesh, Settings(remat=remat))
        )
        params = to_stage_layout(init_llama(CONFIG, 0), self.layout)
        self.params = jax.device_put(params, stage_shardings(params, self.mesh, sharding))
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        self.constants = jax.device_put(llama_constants(CONFIG, SEQUENCE), everywhere)
        self.compiled: dict[bool, jax.stages.Compiled] = {}

    def __call__(self, text: Mapping[str, np.ndarray]) -> LossAndGradients:
        """With canonical gradients."""
        extras = {name: array for name, array in text.items() if name not in ("tokens", "labels")}
        batch = to_microbatches(
            text["tokens"], text["labels"], num_microbatches=4, mesh=self.mesh, extras=extras
        )
        arguments = (self.params, batch, self.constants)
        if bool(extras) not in self.compiled:
            self.compiled[bool(extras)] = jax.jit(self.run).lower(*arguments).compile(QUICK)
        result = jax.device_get(self.compiled[bool(extras)](*arguments))
        return result._replace(gradients=to_canonical_layout(result.gradients, self.layout))


def reference(text: Mapping[str, np.ndarray]) -> LossAndGradients:
    """Un-pipelined, each document of its own in a sample of its own, from position 0."""
    alone = split_documents(text)
    batch = Batch(*(jnp.asarray(array)[:, None] for array in alone), {})
    contract, constants = llama_contract(CONFIG, "einsum"), llama_constants(CONFIG, SEQUENCE)
    return jax.jit(lambda params: reference_loss_and_gradients(contract, params, batch, constants))(
        init_llama(CONFIG, 0)
    )


def split_documents(text: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and labels, a document a row; what follows a document is not seen by it, and has no label."""
    tokens, labels = [], []
    for sample in range(len(text["tokens"])):
        for segment in range(text["segments"][sample].max() + 1):
            (where,) = np.nonzero(text["segments"][sample] == segment)
            rest = SEQUENCE - len(where)
            tokens.append(np.pad(text["tokens"][sample, where], (0, rest)))
            labels.append(np.pad(text["labels"][sample, where], (0, rest), constant_values=-100))
    return np.stack(tokens), np.stack(labels)


def assert_bits_equal(got: LossAndGradients, expected: LossAndGradients) -> None:
    for leaf, wanted in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, wanted)


MESHES = {
    "alone": ("gpipe", {}),
    "1f1b over 4 ranks": ("1f1b", {"pp": 4, "remat": "none"}),
    "zb_v": ("zb_v", {"pp": 2, "remat": "selective"}),
    "two pipes": ("chimera", {"pp": 2}),
    "all axes": ("zb_h1", {"dp": 2, "pp": 2, "tp": 2, "zero": 3}),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_step_on_packed_documents_is_one_on_each_alone_and_ignores_what_others_say(name: str) -> None:
    """Loss and gradients to 1e-5 of the un-pipelined reference, as everywhere; unchanged to the bit when
    documents without labels say something else. Without isolation these change them."""
    schedule, settings = MESHES[name]
    step = Step(schedule, **settings)
    before = step(TEXT)
    expected = reference(TEXT)
    assert before.num_tokens == expected.num_tokens > 0
    np.testing.assert_allclose(before.loss, expected.loss, rtol=1e-5)
    pairs = zip(jax.tree.leaves(before.gradients), jax.tree.leaves(expected.gradients), strict=True)
    for leaf, wanted in pairs:
        assert np.abs(leaf - wanted).max() <= 1e-5 * np.abs(wanted).max()
    changed = with_other_first_documents(TEXT)
    assert_bits_equal(step(changed), before)
    if name == "alone":
        assert step(without_isolation(changed)).loss != step(without_isolation(TEXT)).loss


@pytest.mark.parametrize("implementation", ["einsum", "xla"])
def test_the_logits_of_other_documents_are_the_same_to_the_bit(implementation: Implementation) -> None:
    """The loss of each label alone shows each position's logits."""
    contract = llama_contract(CONFIG, implementation)
    params, constants = init_llama(CONFIG, 0), llama_constants(CONFIG, SEQUENCE)

    @jax.jit
    def losses(tokens: jax.Array, label_of: jax.Array) -> jax.Array:
        extras = {name: jnp.asarray(TEXT[name])[None, :1] for name in ("segments", "positions")}

        def one(labels: jax.Array) -> jax.Array:
            batch = Batch(tokens[None, None], labels[None, None], extras)
            return reference_loss(contract, params, batch, constants)[0]

        return jax.lax.map(one, label_of)

    each = np.where(np.eye(SEQUENCE, dtype=bool), 7, -100).astype(np.int32)
    before = losses(TEXT["tokens"][0], each)
    for document in range(3):
        is_changed = TEXT["segments"][0] == document
        after = losses(np.where(is_changed, 49 - TEXT["tokens"][0], TEXT["tokens"][0]), each)
        np.testing.assert_array_equal(after[~is_changed], before[~is_changed])
        assert np.all(after[is_changed] != before[is_changed])


def test_the_model_reads_the_positions_it_is_given() -> None:
    """RoPE shows distances alone, and hides where a document starts: so these stand twice as far apart."""
    contract, constants = llama_contract(CONFIG, "einsum"), llama_constants(CONFIG, 2 * SEQUENCE)
    params, arrays = (
        init_llama(CONFIG, 0),
        {name: jnp.asarray(array[:, None]) for name, array in TEXT.items()},
    )

    @jax.jit
    def loss(positions: jax.Array) -> jax.Array:
        extras = {"segments": arrays["segments"], "positions": positions}
        return reference_loss(contract, params, Batch(arrays["tokens"], arrays["labels"], extras), constants)[
            0
        ]

    near = loss(arrays["positions"])
    np.testing.assert_allclose(loss(arrays["positions"] + 5), near, rtol=1e-5)
    assert abs(loss(2 * arrays["positions"]) - near) > 1e-3 * near


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
def test_isolation_leaves_nothing_more_for_the_backward_pass(remat: Remat) -> None:
    """Masks and turned tables are made again from the segments and positions, which B has anyway."""
    contract, constants = llama_contract(CONFIG, "einsum"), llama_constants(CONFIG, SEQUENCE)
    params = jax.tree.map(lambda leaf: leaf[0], init_llama(CONFIG, 0)["layers"])
    x = jnp.zeros((2, SEQUENCE, CONFIG.hidden_size))
    extras = {name: jnp.asarray(TEXT[name][:2]) for name in ("segments", "positions")}
    plain, isolated = (
        split_layer(contract.layer, params, x, context=(constants, given), remat=remat).residuals
        for given in ({}, extras)
    )
    assert [leaf.shape for leaf in isolated] == [leaf.shape for leaf in plain]
