"""Decoding with a cache, on every kind of mesh, against the whole text read at once without one."""

import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import QUICK, make_mesh
from tiny_llama import CONTRACT, HIDDEN, NUM_LAYERS, VOCAB_SIZE, make_config, make_params

from jaxpipe.models.llama_stage import llama_constants
from jaxpipe.pipeline import Layout, Sharding, Tree, to_stage_layout
from jaxpipe.pipeline.decode import Decoder, Decoding, make_begin, make_extend, padded_length
from jaxpipe.pipeline.sampling import Sampling
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.schedules import Placement
from jaxpipe.schedules.placement import looped, mirrored, v_shaped
from jaxpipe.training.reference import reference_logits

BATCH, PROMPT, LENGTH, BLOCK = 2, 6, 16, 4
"""The prompt is one block and a half, so that the padding of a block is written over later."""

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.5, top_p=0.9)
NO_END = None

TOLERANCE = 1e-5
"""Of the largest logit. Sums of up to 24 fp32 terms in another order differ by about 1e-6; attention to one
position more or less, or queries turned by one position too many, by a third of it (they were tried)."""

TOLERANCE_BF16 = 0.05
"""bf16 keeps 8 bits, 0.4 %, and a dozen roundings follow each other through the layers."""


class Mesh(NamedTuple):
    placement: Placement
    layers_per_stage: tuple[int, ...]
    dp: int = 1
    tp: int = 1
    zero: int = 0
    sequence: bool = False
    tied: bool = False
    dtype: str = "float32"


MESHES = {
    "one": Mesh(looped(1), (4,)),
    "pp4": Mesh(looped(4), (1, 1, 1, 1)),
    "tied-uneven": Mesh(looped(2), (1, 3), tied=True),
    "interleaved": Mesh(looped(2, 2), (1, 1, 1, 1)),
    "v-uneven-zero1": Mesh(v_shaped(2), (1, 1, 2, 1), dp=2, zero=1),
    "two-pipes": Mesh(mirrored(2), (2, 2)),
    "dp2-pp2-tp2-zero2": Mesh(looped(2), (2, 2), dp=2, tp=2, zero=2, sequence=True),
    "dp2-pp2-tp2-zero3": Mesh(looped(2), (2, 2), dp=2, tp=2, zero=3, tied=True),
    "bf16": Mesh(looped(2), (2, 2), dtype="bfloat16"),
}


def params_of(mesh: Mesh) -> Tree:
    return make_params(sum(mesh.layers_per_stage), tied=mesh.tied)


class Compiled(NamedTuple):
    """Programs of one mesh, with its parameters in place."""

    begin: Callable[..., Decoding]
    extend: Callable[..., Decoding]
    params: Tree

    def start(self, prompts: np.ndarray) -> Decoding:
        tokens = np.full((BATCH, LENGTH), VOCAB_SIZE - 1, np.int32)
        tokens[:, : prompts.shape[1]] = prompts
        return self.begin(self.params, tokens, np.int32(prompts.shape[1]), constants())

    def go_on(self, decoding: Decoding, length: int, *, seed: int = 0) -> Decoding:
        return self.extend(self.params, decoding, np.int32(length), np.uint32(seed), constants())


@cache
def constants() -> Tree:
    return llama_constants(make_config(), LENGTH)


@cache
def prompts(length: int = PROMPT) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB_SIZE, (BATCH, length))


@cache
def begin_on(name: str) -> tuple[Decoder, Callable, Tree]:
    mesh = MESHES[name]
    sharding = Sharding(mesh.tp, mesh.zero, mesh.sequence, CONTRACT.splits)
    layout = Layout(mesh.placement, mesh.layers_per_stage, VOCAB_SIZE, sharding)
    devices = make_mesh(dp=mesh.dp, pp=mesh.placement.num_ranks, tp=mesh.tp)
    decoder = Decoder(CONTRACT, layout, devices, jnp.dtype(mesh.dtype))
    staged = to_stage_layout(params_of(mesh), layout)
    params = jax.device_put(staged, stage_shardings(staged, devices, sharding))
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), np.int32)
    lowered = jax.jit(make_begin(decoder, block=BLOCK)).lower(params, tokens, np.int32(1), constants())
    return decoder, lowered.compile(QUICK), params


@cache
def lower_extend(name: str, sampling: Sampling, end: int | None) -> tuple[jax.stages.Lowered, Decoding]:
    """And what it extends, whose memory it takes over."""
    decoder, begin, params = begin_on(name)
    example = Compiled(begin, begin, params).start(prompts())
    extend = jax.jit(make_extend(decoder, sampling, end=end), donate_argnums=1)
    return extend.lower(params, example, np.int32(1), np.uint32(0), constants()), example


@cache
def compiled(name: str, sampling: Sampling = GREEDY, end: int | None = NO_END) -> Compiled:
    _, begin, params = begin_on(name)
    return Compiled(begin, lower_extend(name, sampling, end)[0].compile(QUICK), params)


@cache
def continued(name: str, sampling: Sampling, seed: int = 0) -> np.ndarray:
    programs = compiled(name, sampling)
    return np.asarray(programs.go_on(programs.start(prompts()), LENGTH, seed=seed).tokens)


def uncached_logits(mesh: Mesh, tokens: np.ndarray) -> np.ndarray:
    """Of every position, from the whole text; what is added to make it long enough, it cannot see."""
    run = jax.jit(lambda params, tokens: reference_logits(CONTRACT, params, tokens, constants(), {}))
    whole = np.pad(tokens, ((0, 0), (0, LENGTH - tokens.shape[1])))
    return np.asarray(run(params_of(mesh), whole))[:, : tokens.shape[1]]


@pytest.mark.parametrize("name", MESHES)
def test_logits_from_the_cache_are_those_of_the_whole_text_at_every_position(name: str) -> None:
    mesh, programs = MESHES[name], compiled(name, DRAWN)
    decoding = programs.start(prompts())
    found = [np.asarray(decoding.logits)]
    for length in range(PROMPT + 1, LENGTH + 1):
        decoding = programs.go_on(decoding, length)
        found.append(np.asarray(decoding.logits))
    tokens = np.asarray(decoding.tokens)
    expected = uncached_logits(mesh, tokens)[:, PROMPT - 1 :]
    off = np.abs(np.stack(found, axis=1) - expected).max()
    tolerance = TOLERANCE_BF16 if mesh.dtype == "bfloat16" else TOLERANCE
    assert off <= tolerance * np.abs(expected).max()
    np.testing.assert_array_equal(tokens[:, :PROMPT], prompts())
    assert len(np.unique(tokens[:, PROMPT:])) > 3, "a text of one token would show little"


@pytest.mark.parametrize("name", ["pp4", "interleaved", "two-pipes", "dp2-pp2-tp2-zero2"])
def test_the_same_seed_gives_the_same_tokens_on_every_mesh(name: str) -> None:
    np.testing.assert_array_equal(continued(name, DRAWN), continued("one", DRAWN))


def test_another_seed_gives_other_tokens_and_samples_differ() -> None:
    first, second = continued("one", DRAWN), continued("one", DRAWN, 1)
    assert np.any(first != second)
    programs = compiled("one", DRAWN)
    same = np.repeat(prompts()[:1], BATCH, axis=0)
    tokens = np.asarray(programs.go_on(programs.start(same), LENGTH).tokens)
    assert np.any(tokens[0] != tokens[1])


def test_one_call_gives_what_many_calls_give() -> None:
    programs = compiled("one", DRAWN)
    decoding = programs.start(prompts())
    for length in (PROMPT + 1, PROMPT + 1, PROMPT + 4, LENGTH):
        decoding = programs.go_on(decoding, length)
        assert int(decoding.length) == length
    np.testing.assert_array_equal(decoding.tokens, continued("one", DRAWN))


@pytest.mark.parametrize("length", [1, BLOCK, LENGTH - 1])
def test_a_prompt_of_one_token_of_a_block_and_one_that_leaves_room_for_one_token(length: int) -> None:
    programs = compiled("one")
    text = np.random.default_rng(1).integers(0, VOCAB_SIZE, (BATCH, length))
    decoding = programs.start(text)
    expected = uncached_logits(MESHES["one"], text)[:, -1]
    np.testing.assert_allclose(decoding.logits, expected, atol=TOLERANCE * np.abs(expected).max())
    decoding = programs.go_on(decoding, length + 1)
    np.testing.assert_array_equal(np.asarray(decoding.tokens)[:, length], expected.argmax(-1))


def test_samples_know_nothing_of_each_other() -> None:
    programs = compiled("one")
    other = prompts().copy()
    other[1] = (other[1] + 7) % VOCAB_SIZE
    tokens = np.asarray(programs.go_on(programs.start(other), LENGTH).tokens)
    expected = continued("one", GREEDY)
    np.testing.assert_array_equal(tokens[0], expected[0])
    assert np.any(tokens[1, PROMPT:] != expected[1, PROMPT:])


def test_a_sample_stops_at_the_end_of_its_document_and_all_stop_when_each_has() -> None:
    """The end is a token that the first sample is known to draw, later or never by the second."""
    free = continued("one", GREEDY)
    end = int(free[0, PROMPT + 1])
    firsts = [np.flatnonzero(row[PROMPT:] == end) for row in free]
    programs = compiled("one", GREEDY, end)
    decoding = programs.go_on(programs.start(prompts()), LENGTH)
    tokens, length = np.asarray(decoding.tokens), int(decoding.length)
    for row, expected, found in zip(tokens, free, firsts, strict=True):
        stop = PROMPT + int(found[0]) + 1 if len(found) else length
        np.testing.assert_array_equal(row[:stop], expected[:stop])
        assert np.all(row[stop:length] == end)
    np.testing.assert_array_equal(decoding.is_done, [len(found) > 0 for found in firsts])
    alone = programs.start(np.repeat(prompts()[:1], BATCH, axis=0))
    assert int(programs.go_on(alone, LENGTH).length) == PROMPT + int(firsts[0][0]) + 1


def test_a_cache_takes_whole_blocks() -> None:
    assert [padded_length(length, block=4) for length in (1, 4, 5)] == [4, 4, 8]


def test_the_loop_over_tokens_compiles_no_layer_twice() -> None:
    """However many tokens, stages and layers there are, the program holds one layer and one head."""

    def products(name: str) -> int:
        return lower_extend(name, GREEDY, NO_END)[0].as_text().count("stablehlo.dot_general")

    num_kernels, num_of_attention, num_of_head = 7, 2, 1
    assert products("pp4") == products("interleaved") == num_kernels + num_of_attention + num_of_head


@pytest.mark.parametrize("name", ["one", "interleaved"])
def test_the_cache_is_updated_where_it_lies(name: str) -> None:
    """A copy of it for each token, or for each call, would cost more than all else of a long text."""
    lowered, example = lower_extend(name, GREEDY, NO_END)
    (leaf, *others) = jax.tree.leaves(example.cache)
    shape = "f32[" + ",".join(map(str, leaf.sharding.shard_shape(leaf.shape))) + "]"
    text = lowered.compile().as_text()
    assert len(others) == 1
    assert shape in text
    assert [line for line in text.splitlines() if " copy(" in line and shape in line] == []


@pytest.mark.parametrize("name", ["pp4", "interleaved", "two-pipes", "dp2-pp2-tp2-zero3"])
def test_ranks_exchange_activations_and_zero_3_gathers_one_layer_at_a_time(name: str) -> None:
    pattern = r"= \(?\w+\[([\d,]*)\]\S* (?:\S+ )*?(all-\w+|collective-permute|reduce-scatter)(?:-start)?\("
    text = compiled(name, DRAWN).extend.as_text()
    moved = [(kind, tuple(map(int, shape.split(",")))) for shape, kind in re.findall(pattern, text)]
    kernels = jax.tree.leaves(params_of(MESHES[name])["layers"]["kernels"])
    one_layer_of_two = {(kernel.shape[1] // 2, kernel.shape[2]) for kernel in kernels} | {
        (kernel.shape[1], kernel.shape[2] // 2) for kernel in kernels
    }
    activations = {(BATCH, HIDDEN), (BATCH, 1, HIDDEN), (BATCH, 50), (BATCH, 52), (BATCH, HIDDEN // 2)}
    activations |= {(2 * BATCH,)}  # the tokens that the copies tell each other
    assert any(shape[-1] == HIDDEN for _, shape in moved)
    gathers_kernels = any(kind == "all-gather" and shape in one_layer_of_two for kind, shape in moved)
    assert gathers_kernels == (MESHES[name].zero == 3)
    for kind, shape in moved:
        of_zero_3 = kind == "all-gather" and MESHES[name].zero == 3 and shape in one_layer_of_two
        assert shape in activations or of_zero_3, (kind, shape)


def test_greedy_text_is_that_of_transformers() -> None:
    """The same weights in the implementation that most people use, token by token."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of importing it
        transformers = pytest.importorskip("transformers")
        model = _of_transformers(transformers, torch)
        ids = torch.from_numpy(prompts())
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_length=LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    np.testing.assert_array_equal(continued("one", GREEDY), expected.numpy())


def _of_transformers(transformers, torch):
    """A LlamaForCausalLM with our parameters; its kernels are ``[out, in]``."""
    config, params = make_config(), jax.tree.map(np.asarray, params_of(MESHES["one"]))
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_size,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=False,
        )
    )
    kernels, small = params["layers"]["kernels"], params["layers"]["small"]
    weights = {
        "model.embed_tokens.weight": params["embedding"],
        "model.norm.weight": params["final"]["scale"],
        "lm_head.weight": params["head"],
    }
    for index in range(NUM_LAYERS):
        start = f"model.layers.{index}."
        for group, members in kernels.items():
            module = group.split(".")[0]
            weights |= {f"{start}{module}.{name}.weight": it[index].T for name, it in members.items()}
        weights |= {start + path.replace("scale", "weight"): it[index] for path, it in small.items()}
    state = {name: torch.tensor(np.ascontiguousarray(weight)) for name, weight in weights.items()}
    model.load_state_dict(state)
    return model.eval()
