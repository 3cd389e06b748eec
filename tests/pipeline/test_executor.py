"""Loss and every gradient equal the un-pipelined ones, whatever the schedule, the mesh and the settings.

Two oracles: ``training/reference.py`` for Llama (itself tested against NumPy in tests/models), and for the
MLP stage its own plain loss, which shares nothing with the pipeline but the product in ``dense``.
Buffers start as NaN everywhere, so that whatever reads a slot before it was written shows.
"""

import itertools
import random
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import legal_orders
import mlp
import numpy as np
import pytest
import tiny_llama
from programs import (
    Evaluation,
    Step,
    assert_leaves_close,
    assert_same_bits,
    compile_evaluation,
    compile_step,
    make_mesh,
    make_program,
)

from jaxpipe.lowering import lower
from jaxpipe.pipeline import (
    Batch,
    Settings,
    Sharding,
    StageContract,
    Tree,
    dense,
    make_loss,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import Placement, build, forward_only, looped, mirrored, v_shaped
from jaxpipe.training.reference import reference_loss

NAN = float("nan")


class Case(NamedTuple):
    """One way to run Llama."""

    schedule: str
    ranks: int
    microbatches: int
    tied: bool
    remat: Remat
    fuse_backward: bool
    transfer_ticks: int
    dp: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


def draw_cases() -> list[Case]:
    """Schedules x ranks x microbatches; the seed of what is drawn makes all pairs of choices meet."""
    rng = random.Random(2)
    return [
        Case(
            *sizes,
            tied=rng.choice((False, True)),
            remat=rng.choice(("full", "selective", "none")),
            fuse_backward=rng.choice((False, True)),
            transfer_ticks=rng.choice((1, 2)),
            dp=rng.choice((1, 2)),
        )
        for sizes in itertools.product(("gpipe", "1f1b", "zb_h1"), (1, 2, 4), (1, 2, 3, 8))
    ]


CASES = draw_cases()


@cache
def llama_step(case: Case) -> Step:
    table = lower(
        build(case.schedule, num_ranks=case.ranks, num_microbatches=case.microbatches),
        transfer_ticks=case.transfer_ticks,
        fuse_backward=case.fuse_backward,
    )
    params = tiny_llama.make_params(tied=case.tied)
    settings = Settings(remat=case.remat, fill=NAN, head_tokens=10)
    program = make_program(tiny_llama.CONTRACT, table, params, dp=case.dp, settings=settings)
    batch = tiny_llama.make_batch(case.microbatches)
    return compile_step(program, params, batch, tiny_llama.make_constants())


@cache
def mlp_step(
    schedule: str,
    num_microbatches: int,
    *,
    layers_per_stage: tuple[int, ...],
    tied: bool = False,
    vocab_size: int = mlp.VOCAB_SIZE,
    batch: int = 2,
    transfer_ticks: int = 1,
    fuse_backward: bool = False,
    dp: int = 1,
    settings: Settings = Settings(fill=NAN),  # noqa: B008 (immutable)
) -> Step:
    table = lower(
        build(schedule, num_ranks=len(layers_per_stage), num_microbatches=num_microbatches),
        transfer_ticks=transfer_ticks,
        fuse_backward=fuse_backward,
    )
    params = mlp.make_params(sum(layers_per_stage), tied=tied, vocab_size=vocab_size)
    program = make_program(
        mlp.CONTRACT, table, params, layers_per_stage=layers_per_stage, dp=dp, settings=settings
    )
    return compile_step(program, params, mlp.make_batch(num_microbatches, batch=batch), mlp.make_constants())


# Llama: schedules with one stage a rank, ranks and microbatches


def test_every_pair_of_choices_is_among_the_cases() -> None:
    values = [set(column) for column in zip(*CASES, strict=True)]
    assert len(CASES) == len(set(CASES)) == 36
    for first, second in itertools.combinations(range(len(values)), 2):
        met = {(case[first], case[second]) for case in CASES}
        assert met == set(itertools.product(values[first], values[second])), Case._fields[first]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_llama_has_the_loss_and_gradients_of_the_reference(case: Case) -> None:
    got = llama_step(case)(tiny_llama.make_params(tied=case.tied), tiny_llama.make_batch(case.microbatches))
    tiny_llama.assert_equals_reference(got, case.microbatches, tied=case.tied)


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_a_batch_without_valid_tokens_has_no_loss_and_no_gradient(case: Case) -> None:
    batch = tiny_llama.make_batch(case.microbatches)
    masked = batch._replace(labels=jnp.full_like(batch.labels, -100))
    got = llama_step(case)(tiny_llama.make_params(tied=case.tied), masked)
    assert got.num_tokens == 0
    assert got.loss == 0
    for path, leaf in jax.tree.leaves_with_path(got.gradients):
        assert np.all(leaf == 0), jax.tree_util.keystr(path)


@pytest.mark.parametrize("case", CASES[3::9], ids=str)
def test_two_runs_give_the_same_bits(case: Case) -> None:
    arguments = tiny_llama.make_params(tied=case.tied), tiny_llama.make_batch(case.microbatches)
    assert_same_bits(llama_step(case)(*arguments), llama_step(case)(*arguments))


# A stage that is no Llama


@pytest.mark.parametrize(
    ("schedule", "layers_per_stage", "remat", "tied", "fuse_backward", "transfer_ticks"),
    [
        ("gpipe", (1, 3, 2, 1), "full", True, True, 2),
        ("1f1b", (2, 1, 3, 1), "selective", False, True, 1),
        ("1f1b", (1, 1, 1, 4), "none", True, False, 2),
        ("zb_h1", (3, 1, 1, 2), "full", False, False, 1),
        ("zb_h1", (3, 4), "selective", True, True, 1),
        ("zb_h1", (2, 2, 3), "none", False, False, 2),
    ],
)
def test_stages_of_unequal_length_change_nothing(
    schedule: str,
    layers_per_stage: tuple[int, ...],
    remat: Remat,
    tied: bool,
    fuse_backward: bool,
    transfer_ticks: int,
) -> None:
    step = mlp_step(
        schedule,
        5,
        layers_per_stage=layers_per_stage,
        tied=tied,
        transfer_ticks=transfer_ticks,
        fuse_backward=fuse_backward,
        settings=Settings(remat=remat, fill=NAN),
    )
    params, batch = mlp.make_params(7, tied=tied), mlp.make_batch(5)
    mlp.assert_equals_plain(step(params, batch), params, batch)


@pytest.mark.parametrize(
    ("vocab_size", "tied"), [(5, True), (13, False)], ids=["rank-3-holds-only-padding", "3-rows-of-padding"]
)
def test_the_vocabulary_need_not_divide_by_the_ranks(vocab_size: int, tied: bool) -> None:
    step = mlp_step("1f1b", 3, layers_per_stage=(1, 1, 1, 1), tied=tied, vocab_size=vocab_size)
    params = mlp.make_params(4, tied=tied, vocab_size=vocab_size)
    batch = mlp.make_batch(3, vocab_size=vocab_size)
    mlp.assert_equals_plain(step(params, batch), params, batch)


LEGAL_ORDERS = [
    (looped(4), 6, 0),
    (looped(3), 5, 1),
    (looped(4, 2), 4, 2),
    (looped(4, 2), 5, 3),
    (looped(2, 2), 4, 4),
    (looped(1, 3), 3, 5),
    (v_shaped(4), 5, 6),
    (v_shaped(2), 3, 7),
]


@pytest.mark.parametrize(
    ("placement", "num_microbatches", "seed"),
    LEGAL_ORDERS,
    ids=[f"{p.num_ranks}-ranks-{p.num_chunks}-chunks-seed-{seed}" for p, _, seed in LEGAL_ORDERS],
)
def test_orders_that_nobody_wrote_are_exact(placement: Placement, num_microbatches: int, seed: int) -> None:
    """Any placement whose messages travel one hop: several chunks a rank, both ends on one rank."""
    schedule = legal_orders.random_order(placement, num_microbatches, seed)
    table = lower(schedule, transfer_ticks=1 + seed % 2, fuse_backward=seed % 3 == 0)
    # one layer more than stages: the first stage is longer; with a seed that 4 divides, all are equal
    params = mlp.make_params(placement.num_stages + (seed % 4 != 0), tied=seed % 2 == 0)
    batch = mlp.make_batch(num_microbatches)
    remats: tuple[Remat, ...] = ("full", "selective", "none")
    settings = Settings(remat=remats[seed % 3], fill=NAN)
    program = make_program(mlp.CONTRACT, table, params, settings=settings)
    step = compile_step(program, params, batch, mlp.make_constants())
    mlp.assert_equals_plain(step(params, batch), params, batch)


def test_programs_whose_parts_do_not_fit_are_refused() -> None:
    params = mlp.make_params(4)
    table = lower(build("1f1b", num_ranks=4, num_microbatches=2))
    program = make_program(mlp.CONTRACT, table, params)
    other_layout = replace(program.layout, placement=v_shaped(2))
    four_pipes = lower(legal_orders.random_order(mirrored(4, num_pipes=4), 4, seed=0))
    for broken, reason in (
        (program._replace(layout=other_layout), "place the stages differently"),
        (program._replace(mesh=make_mesh(dp=2, pp=2)), "another number of ranks"),
        (make_program(mlp.CONTRACT, four_pipes, params), "4 pipes"),
    ):
        with pytest.raises(AssertionError, match=reason):
            make_loss_and_gradients(broken)
    with pytest.raises(AssertionError, match="not forward-only"):
        make_loss(program)
    evaluation = make_program(mlp.CONTRACT, lower(forward_only(looped(4), 2)), params)
    with pytest.raises(AssertionError, match="no backward action"):
        make_loss_and_gradients(evaluation)


# The loss is a mean over the tokens of the global batch


@pytest.mark.parametrize(
    ("schedule", "num_microbatches", "dp"),
    [("gpipe", 4, 2), ("1f1b", 1, 4), ("1f1b", 2, 2), ("zb_h1", 4, 2), ("zb_h1", 8, 1)],
)
@pytest.mark.parametrize(
    "num_valid",
    [(6, 1, 3, 6, 2, 0, 5, 4), (6, 6, 6, 6, 1, 0, 0, 0)],
    ids=["uneven", "nearly-all-on-one-shard"],
)
def test_how_the_batch_is_cut_changes_nothing(
    schedule: str, num_microbatches: int, dp: int, num_valid: tuple[int, ...]
) -> None:
    """Eight sequences with so many valid tokens: never a mean of means over microbatches or over dp."""
    whole = mlp.make_batch(1, batch=8)
    masked = np.arange(mlp.SEQUENCE) >= np.array(num_valid)[:, None]
    whole = whole._replace(labels=jnp.where(masked, -1, jnp.abs(whole.labels) % mlp.VOCAB_SIZE))
    cut = jax.tree.map(lambda leaf: leaf.reshape(num_microbatches, -1, *leaf.shape[2:]), whole)
    params = mlp.make_params(4)
    step = mlp_step(schedule, num_microbatches, layers_per_stage=(2, 2), batch=8 // num_microbatches, dp=dp)
    got = step(params, cut)
    assert got.num_tokens == sum(num_valid)
    mlp.assert_equals_plain(got, params, whole)


@pytest.mark.parametrize("head_tokens", [1, 5])
def test_the_head_takes_any_number_of_tokens_at_a_time(head_tokens: int) -> None:
    """To 1e-6: only the order changes in which fp32 sums over tokens are formed."""
    step = mlp_step(
        "1f1b", 3, layers_per_stage=(1, 1), tied=True, settings=Settings(head_tokens=head_tokens, fill=NAN)
    )
    params, batch = mlp.make_params(2, tied=True), mlp.make_batch(3)
    mlp.assert_equals_plain(step(params, batch), params, batch, tolerance=1e-6)


# Uneven stages


@pytest.mark.parametrize("remat", ["full", "none"])
def test_layers_of_padding_are_never_computed(remat: Remat) -> None:
    """They hold NaN here, which any arithmetic with them would spread; and they get no gradient."""
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(3)
    table = lower(build("zb_h1", num_ranks=2, num_microbatches=3))
    settings = Settings(remat=remat, fill=NAN)
    program = make_program(tiny_llama.CONTRACT, table, params, layers_per_stage=(3, 1), settings=settings)
    step = compile_step(program, params, batch, tiny_llama.make_constants())
    staged = to_stage_layout(params, program.layout)
    poisoned = staged | {"layers": jax.tree.map(lambda leaf: leaf.at[1, 0, 1:].set(NAN), staged["layers"])}
    result = step.compiled(poisoned, batch, step.constants)
    padding = jax.tree.map(lambda leaf: np.asarray(leaf)[1, 0, 1:], result.gradients["layers"])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(padding))
    got = result._replace(gradients=to_canonical_layout(jax.device_get(result.gradients), program.layout))
    tiny_llama.assert_equals_reference(got, 3, tied=False)


# Dtypes


@pytest.mark.parametrize(
    ("schedule", "mesh", "remat"),
    [
        ("zb_h1", {}, "full"),
        ("zb_h1", {"dp": 2, "tp": 2, "zero": 3, "sequence": True}, "none"),
        ("dualpipe", {"dp": 2, "tp": 2, "zero": 2}, "selective"),
        ("1f1b", {"dp": 2, "zero": 1}, "full"),
    ],
    ids=str,
)
def test_bf16_gradients_are_near_those_of_fp32(schedule: str, mesh: dict, remat: Remat) -> None:
    """bf16 rounds by up to 2^-9 of a value at every operation. Along the longest path some fifty roundings
    meet, as in a random walk: sqrt(50) 2^-9 = 1.4 % of the leaf's norm; the bound is about twice that."""
    num_microbatches = 4
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(num_microbatches)
    table = lower(build(schedule, num_ranks=2, num_microbatches=num_microbatches))
    settings = Settings(compute_dtype=jnp.bfloat16, fill=NAN, remat=remat)
    dp, shares = mesh.get("dp", 1), {key: value for key, value in mesh.items() if key != "dp"}
    sharding = Sharding(**shares, splits=tiny_llama.CONTRACT.splits)
    program = make_program(tiny_llama.CONTRACT, table, params, dp=dp, sharding=sharding, settings=settings)
    got = compile_step(program, params, batch, tiny_llama.make_constants())(params, batch)
    expected = tiny_llama.reference(num_microbatches, False)
    np.testing.assert_allclose(got.loss, expected.loss, rtol=2**-7)
    for (path, leaf), wanted in zip(
        jax.tree.leaves_with_path(got.gradients), jax.tree.leaves(expected.gradients), strict=True
    ):
        assert leaf.dtype == np.float32
        off = np.linalg.norm(leaf - wanted) / np.linalg.norm(wanted)
        assert off < 0.03, f"{jax.tree_util.keystr(path)}: off by {off:.3f} of its norm"


@pytest.mark.parametrize("fuse_backward", [False, True])
def test_accumulators_are_fp32_whatever_the_compute_dtype(fuse_backward: bool) -> None:
    """One gradient of 1 and 63 of 2^-9 make 1.123; accumulated in bf16 they would make 1."""

    def layer(params: Tree, x: jax.Array, constants: Tree, extras: Tree) -> jax.Array:
        gain = jnp.broadcast_to(extras["gain"][:, None, None], x.shape).astype(x.dtype)
        return x + dense(gain, params["kernels"]["only"])["kernel"]

    contract = StageContract(layer, lambda params, y: y * params["scale"][None].astype(y.dtype))
    rng = np.random.default_rng(0)
    params = {
        "embedding": jnp.asarray(rng.normal(size=(6, 4)), jnp.float32),
        # kernels of zero: the gain of a microbatch scales their gradient and touches nothing else
        "layers": {"kernels": {"only": {"kernel": jnp.zeros((2, 4, 4))}}, "small": {}},
        "final": {"scale": jnp.ones(4)},
        "head": jnp.asarray(rng.normal(size=(6, 4)), jnp.float32),
    }
    same = jnp.ones((64, 1, 1), jnp.int32)
    gains = np.full((64, 1), 2.0**-9, np.float32)
    gains[0] = 1.0

    def batch(gains: np.ndarray) -> Batch:
        return Batch(2 * same, 3 * same, {"gain": jnp.asarray(gains)})

    table = lower(build("1f1b", num_ranks=2, num_microbatches=64), fuse_backward=fuse_backward)
    settings = Settings(compute_dtype=jnp.bfloat16, fill=NAN)
    program = make_program(contract, table, params, settings=settings)
    step = compile_step(program, params, batch(gains), {})
    all_of_them = step(params, batch(gains)).gradients
    first = step(params, batch(np.where(gains == 1, gains, 0))).gradients

    def kernel(gradients: Tree) -> np.ndarray:
        return gradients["layers"]["kernels"]["only"]["kernel"]

    np.testing.assert_allclose(kernel(all_of_them), kernel(first) * (1 + 63 * 2.0**-9), rtol=1e-6)
    # 64 equal gradients of embedding, head and final have the mean of the first alone; sums of so many equal
    # terms in bf16 are off by percents
    alone = step(params, batch(gains)._replace(labels=jnp.where(jnp.arange(64)[:, None, None] == 0, 3, -1)))
    for group in ("embedding", "head", "final"):
        assert_leaves_close(all_of_them[group], alone.gradients[group], tolerance=1e-5)


@pytest.mark.parametrize("remat", ["full", "selective", "none"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_dtype_is_promoted_by_chance(dtype: jnp.dtype, remat: Remat) -> None:
    """Every change of dtype in the program is written down; optax aside, nothing needs JAX's promotion."""
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(3)
    table = lower(build("zb_h1", num_ranks=4, num_microbatches=3))
    settings = Settings(remat=remat, compute_dtype=dtype)
    program = make_program(tiny_llama.CONTRACT, table, params, settings=settings)
    staged = to_stage_layout(params, program.layout)
    with jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(make_loss_and_gradients(program), staged, batch, tiny_llama.make_constants())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes.gradients)} == {"float32"}


# Evaluation


@pytest.mark.parametrize(
    ("placement", "num_microbatches", "dp", "transfer_ticks"),
    [(looped(1), 2, 1, 1), (looped(4), 3, 2, 2), (looped(2, 2), 5, 1, 1), (v_shaped(2), 2, 1, 2)],
    ids=["one-rank", "four-ranks", "two-chunks", "v-shaped"],
)
def test_evaluation_has_the_loss_of_the_reference(
    placement: Placement, num_microbatches: int, dp: int, transfer_ticks: int
) -> None:
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(num_microbatches, batch=4)
    evaluate = llama_evaluation(placement, num_microbatches, dp=dp, transfer_ticks=transfer_ticks)
    loss, num_tokens = evaluate(params, batch)
    expected_loss, expected_tokens = reference_loss(
        tiny_llama.CONTRACT, params, batch, tiny_llama.make_constants()
    )
    assert num_tokens == expected_tokens
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)


def test_evaluation_changes_no_bit_of_training() -> None:
    """Another batch size, on the same devices and parameters."""
    case = next(case for case in CASES if case.ranks == 4 and case.microbatches == 3 and not case.tied)
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(3)
    before = llama_step(case)(params, batch)
    llama_evaluation(looped(4), 3, dp=2, transfer_ticks=2)(params, tiny_llama.make_batch(3, batch=4))
    assert_same_bits(llama_step(case)(params, batch), before)


@cache
def llama_evaluation(
    placement: Placement, num_microbatches: int, *, dp: int, transfer_ticks: int
) -> Evaluation:
    params, batch = tiny_llama.make_params(), tiny_llama.make_batch(num_microbatches, batch=4)
    table = lower(forward_only(placement, num_microbatches), transfer_ticks=transfer_ticks)
    program = make_program(tiny_llama.CONTRACT, table, params, dp=dp)
    return compile_evaluation(program, params, batch, tiny_llama.make_constants())
