"""The PyTorch peer computes the same Llama, steps when it is told to, and ends when it is told no more."""

import os

import jax
import numpy as np
import pytest

from benchmarks.torch_peer import Experiment, PeerError, model_of, open_peer
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.training.reference import reference_logits

torch = pytest.importorskip("torch")

from benchmarks.torch_worker import Model, Stage, stages_of  # noqa: E402  it loads PyTorch

MODEL = LlamaConfig(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.2,  # so that every part of a layer shows in the logits
)
SIZES = model_of(MODEL, sequence_length=16, batch=2)


def load(stage: Stage, params, first_layer: int) -> None:
    """The canonical parameters into a stage: kernels transposed, and joined where PyTorch has one matrix."""

    def put(parameter, *arrays) -> None:
        joined = np.concatenate([np.asarray(array) for array in arrays], axis=-1).T
        parameter.data.copy_(torch.tensor(joined))

    for number, layer in enumerate(stage.layers, first_layer):
        kernels, small = jax.tree.map(lambda leaf: leaf[number], params["layers"]).values()  # noqa: B023
        put(layer.qkv.weight, *(kernels["self_attn.qkv"][name] for name in ("q_proj", "k_proj", "v_proj")))
        put(layer.out.weight, kernels["self_attn.o"]["o_proj"])
        put(layer.gate_up.weight, *(kernels["mlp.gate_up"][name] for name in ("gate_proj", "up_proj")))
        put(layer.down.weight, kernels["mlp.down"]["down_proj"])
        put(layer.attention_norm.weight, small["input_layernorm.scale"])
        put(layer.mlp_norm.weight, small["post_attention_layernorm.scale"])
    if stage.embedding is not None:
        put(stage.embedding.weight, params["embedding"].T)
    if stage.head is not None:
        put(stage.norm.weight, params["final"]["scale"])
        put(stage.head.weight, params["head"].T)


@pytest.mark.parametrize("recompute", [False, True])
def test_its_stages_compute_the_logits_of_the_reference(recompute: bool) -> None:
    params = jax.tree.map(lambda leaf: 1.1 * leaf, init_llama(MODEL, seed=3))  # norm scales other than 1
    tokens = np.random.default_rng(0).integers(0, MODEL.vocab_size, (2, 16), np.int32)
    expected = reference_logits(
        llama_contract(MODEL, "einsum"), params, tokens, llama_constants(MODEL, 16), {}
    )
    x = torch.tensor(tokens, dtype=torch.int64)
    for index in range(2):
        stage = Stage(Model(**SIZES), index=index, num_stages=2, recompute=recompute)
        load(stage, params, first_layer=2 * index)
        x = stage(x)
    # fp32 on both sides, sums in another order; the logits are of the order of 1
    np.testing.assert_allclose(x.detach().numpy(), expected, atol=2e-5)


def test_stages_lie_looped_or_in_a_v() -> None:
    assert [stages_of("1F1B", rank, 2) for rank in range(2)] == [(0,), (1,)]
    assert [stages_of("Interleaved1F1B", rank, 2) for rank in range(2)] == [(0, 2), (1, 3)]
    assert [stages_of("ZBVZeroBubble", rank, 2) for rank in range(2)] == [(0, 3), (1, 2)]


@pytest.mark.slow
def test_it_steps_when_told_and_ends_with_the_block() -> None:
    experiments = [Experiment("1F1B", 4, "full"), Experiment("1F1B", 4, "none")]
    with open_peer(SIZES, num_ranks=2) as peer:
        losses = [[peer.step(experiment) for experiment in experiments] for _ in range(3)]
        pids = peer.pids
    # the same weights and text: recomputation changes no bit
    assert all(full == none for full, none in losses)
    assert abs(losses[0][0] - np.log(MODEL.vocab_size)) < 0.5
    assert losses[2][0] < losses[0][0]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_rank_that_fails_is_told_and_no_other_waits_for_it() -> None:
    with pytest.raises(PeerError, match="rank 0, 1 ended"), open_peer(SIZES, num_ranks=2) as peer:
        peer.step(Experiment("1F1B", 1, "full"))  # fewer microbatches than stages: PyTorch refuses
