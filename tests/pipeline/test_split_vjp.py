"""B and W together are the backward pass, neither repeats the other, and F leaves what the policy says."""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mlp
import numpy as np
import pytest
import tiny_llama
from programs import assert_leaves_close

from jaxpipe.pipeline import Tree, dense
from jaxpipe.pipeline.remat import Remat
from jaxpipe.pipeline.split_vjp import SplitLayer, split_layer, weight_gradients

REMATS: tuple[Remat, ...] = ("full", "selective", "none")

BATCH, LLAMA_SHAPE = 2, (2, tiny_llama.SEQUENCE, tiny_llama.HIDDEN)


class LayerCase(NamedTuple):
    """A layer with arguments of its own."""

    layer: Callable[..., jax.Array]
    params: Tree
    x: jax.Array
    context: tuple


def llama_layer() -> LayerCase:
    params = jax.tree.map(lambda leaf: leaf[0], tiny_llama.make_params()["layers"])
    return LayerCase(
        tiny_llama.CONTRACT.layer, params, normal(*LLAMA_SHAPE), (tiny_llama.make_constants(), {})
    )


def mlp_layer() -> LayerCase:
    params = jax.tree.map(lambda leaf: leaf[0], mlp.make_params(1)["layers"])
    x = normal(BATCH, mlp.SEQUENCE, mlp.HIDDEN)
    return LayerCase(mlp.layer, params, x, (mlp.make_constants(), {"shift": normal(BATCH, mlp.SEQUENCE)}))


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


CASES: dict[str, Callable[[], LayerCase]] = {"llama": llama_layer, "mlp": mlp_layer}


def in_bf16(case: LayerCase) -> LayerCase:
    """As training has it: small parameters and constants stay in fp32."""
    kernels = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), case.params["kernels"])
    return case._replace(params=dict(case.params, kernels=kernels), x=case.x.astype(jnp.bfloat16))


@cache
def split(name: str, remat: Remat) -> tuple[LayerCase, SplitLayer]:
    case = CASES[name]()
    return case, split_layer(case.layer, case.params, case.x, context=case.context, remat=remat)


@cache
def forward(name: str, remat: Remat) -> Callable[..., tuple[jax.Array, list[jax.Array], dict]]:
    return jax.jit(split(name, remat)[1].forward)


@cache
def backward(name: str, remat: Remat) -> Callable[..., tuple]:
    return jax.jit(split(name, remat)[1].backward)


def looked_at(name: str, remat: Remat, linear_inputs: dict) -> dict:
    """Those that B may look at."""
    return {group: linear_inputs[group] for group in split(name, remat)[1].looked_at}


def whole_backward(case: LayerCase, dy: jax.Array) -> tuple[jax.Array, jax.Array, Tree]:
    """y, dx and the gradients of the parameters, by JAX alone."""
    y, pullback = jax.vjp(lambda x, params: case.layer(params, x, *case.context), case.x, case.params)
    return y, *pullback(dy)


# B and W are the backward pass


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("name", CASES)
def test_b_and_w_are_the_backward_pass(name: str, remat: Remat) -> None:
    """To 1e-6 of the largest value: the same products, but sums of dx over q, k and v in another order."""
    case = CASES[name]()
    dy = normal(*case.x.shape)
    # F, B and W in programs of their own: only what is handed over here goes from one to the next
    y, residuals, linear_inputs = forward(name, remat)(case.params, case.x, case.context)
    dx, small, weight_inputs = backward(name, remat)(
        case.params, residuals, looked_at(name, remat, linear_inputs), dy, case.context
    )
    factors = split(name, remat)[1].complete(weight_inputs, linear_inputs)
    got = {
        "y": y,
        "dx": dx,
        "d_params": {"kernels": jax.jit(weight_gradients)(factors), "small": small},
    }
    y, dx, d_params = jax.jit(lambda dy: whole_backward(case, dy))(dy)
    assert_leaves_close(got, {"y": y, "dx": dx, "d_params": d_params}, tolerance=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_b_and_w_multiply_as_often_as_the_backward_pass(name: str) -> None:
    """Matmul FLOPs of the compiled programs; B has all residuals at hand, recomputation is counted below."""
    case, layer = split(name, "none")
    whole = flops(
        lambda params, x, context: whole_backward(case._replace(params=params, x=x, context=context), x),
        *case[1:],
    )
    w = flops(weight_gradients, layer.complete(layer.weight_inputs, layer.linear_inputs))
    assert backward_flops(name, "none") + w == whole - forward_flops(case)
    assert w == linear_flops(case)


@pytest.mark.parametrize("name", CASES)
def test_recomputing_costs_what_was_not_saved(name: str) -> None:
    """``full`` does the layer again but for its last product, ``selective`` attention alone."""
    case, none = CASES[name](), backward_flops(name, "none")
    (last,) = case.params["kernels"]["mlp.down" if name == "llama" else "out"].values()
    assert backward_flops(name, "full") - none == forward_flops(case) - 2 * last.size * case.x[..., 0].size
    assert backward_flops(name, "selective") - none == attention_flops(name)


def forward_flops(case: LayerCase) -> int:
    return flops(lambda params, x, context: case.layer(params, x, *context), *case[1:])


def backward_flops(name: str, remat: Remat) -> int:
    case, layer = split(name, remat)
    inputs = looked_at(name, remat, layer.linear_inputs)
    return flops(layer.backward, case.params, layer.residuals, inputs, case.x, case.context)


def linear_flops(case: LayerCase) -> int:
    return sum(2 * leaf.size * case.x[..., 0].size for leaf in jax.tree.leaves(case.params["kernels"]))


def attention_flops(name: str) -> int:
    """Scores and the weighted sum, 4 heads of 6."""
    return 2 * 2 * 2 * 4 * tiny_llama.SEQUENCE**2 * 6 if name == "llama" else 0


def flops(function: Callable[..., Tree], *arguments: Tree) -> int:
    """Of all dots in the program that XLA makes of a function, after it threw out what nobody uses."""
    text = jax.jit(function).lower(*arguments).compile().as_text() or ""
    shapes = dict(re.findall(r"%([\w.\-]+) = \w+\[([\d,]*)\]", text))
    shapes |= dict(re.findall(r"([\w.\-]+): \w+\[([\d,]*)\]", text))
    total = 0
    for made, left, contracted in re.findall(
        r"= \w+\[([\d,]*)\]\S* dot\(%([\w.\-]+), .*lhs_contracting_dims=\{([\d,]*)\}", text
    ):
        sizes = list(map(int, shapes[left].split(",")))
        total += (
            2
            * int(np.prod(list(map(int, made.split(",")))))
            * int(np.prod([sizes[int(dim)] for dim in contracted.split(",")]))
        )
    return total


# What is stored


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_among_the_residuals(name: str, remat: Remat) -> None:
    """Nor a copy of one, nor of a constant, nor attention's mask: what is stored changes with x."""
    case, layer = split(name, remat)
    known = {leaf.shape for leaf in jax.tree.leaves((case.params, case.context[0]))}
    assert not known & {leaf.shape for leaf in layer.residuals}
    first, other_x = stored(name, remat, case.x), stored(name, remat, case.x[::-1, ::-1])
    for before, after in zip(first, other_x, strict=True):
        assert not np.array_equal(before, after), before.shape


def stored(name: str, remat: Remat, x: jax.Array) -> list[jax.Array]:
    """What F leaves for B and W."""
    case = CASES[name]()
    return jax.tree.leaves(forward(name, remat)(case.params, x, case.context)[1:])


@pytest.mark.parametrize("name", CASES)
def test_full_leaves_the_input_of_the_layer_and_nothing_else(name: str) -> None:
    case = CASES[name]()
    (residual,) = stored(name, "full", case.x)
    np.testing.assert_array_equal(residual, case.x)


def test_selective_leaves_the_outputs_of_the_linear_parts() -> None:
    """Of Llama: x, and the outputs of q, k, v, o, gate and up; that of down is the layer's own."""
    case, layer = split("llama", "selective")
    hidden, heads, kv, inner = tiny_llama.HIDDEN, 4 * 6, 2 * 6, 20
    widths = sorted(leaf.shape[-1] for leaf in layer.residuals)
    assert all(leaf.shape[:2] == case.x.shape[:2] and leaf.ndim == 3 for leaf in layer.residuals)
    assert widths == sorted([hidden, heads, kv, kv, hidden, inner, inner])


@pytest.mark.parametrize("name", CASES)
def test_policies_store_less_the_more_they_recompute(name: str) -> None:
    full, selective, none = (
        sum(leaf.size for leaf in stored(name, remat, CASES[name]().x)) for remat in REMATS
    )
    assert full < selective
    assert selective < none if name == "llama" else selective <= none, "the MLP has no attention to keep"


@pytest.mark.parametrize("name", CASES)
def test_f_leaves_for_w_what_b_cannot_make_from_the_rest_without_a_product(name: str) -> None:
    """Of Llama what attention gives; the outputs of norms and SwiGLU, and the MLP's, are arithmetic."""
    _, layer = split(name, "none")
    assert set(layer.linear_inputs) == ({"self_attn.o"} if name == "llama" else set())
    assert not layer.looked_at


@jax.custom_vjp
def exp_by_hand(x: jax.Array) -> jax.Array:
    return jnp.exp(x)


exp_by_hand.defvjp(lambda x: (jnp.exp(x),) * 2, lambda y, dy: (y * dy,))

INNER: dict[str, tuple[Callable[[jax.Array], jax.Array], bool]] = {
    "the layer's input": (lambda x: x, True),
    "exp": (jnp.exp, True),
    "exp, moved": (lambda x: jnp.exp(x).reshape(6, 4).reshape(2, 3, 4), True),
    "exp, through jit": (lambda x: jax.jit(lambda x, y: (y, x))(x, jnp.exp(x))[0], True),
    "silu": (jax.nn.silu, False),
    "what keeps it for its own VJP": (lambda x: exp_by_hand(x).reshape(6, 4).reshape(2, 3, 4), False),
    "arithmetic": (lambda x: 1 + jnp.exp(x), False),
    "arithmetic, in jit": (lambda x: jax.jit(lambda x, y: (y, 2 * x))(jnp.exp(x), x)[1], False),
}


@pytest.mark.parametrize("inner", INNER)
def test_what_f_leaves_for_w_is_found_through_moves_and_jit(inner: str) -> None:
    function, is_left = INNER[inner]

    def layer(params: Tree, x: jax.Array) -> jax.Array:
        return dense(function(x), params["kernels"]["one"])["w"]

    params = {"kernels": {"one": {"w": normal(4, 4)}}, "small": {}}
    case = LayerCase(layer, params, normal(2, 3, 4), ())
    split = split_layer(layer, params, case.x, context=(), remat="none")
    assert set(split.linear_inputs) == ({"one"} if is_left else set())
    y, residuals, linear_inputs = split.forward(params, case.x, ())
    assert is_left or len(residuals) == 1
    dx, _, weight_inputs = split.backward(params, residuals, linear_inputs, case.x, ())
    kernels = weight_gradients(split.complete(weight_inputs, linear_inputs))
    whole_y, whole_dx, whole = whole_backward(case, case.x)
    assert_leaves_close((y, dx, kernels), (whole_y, whole_dx, whole["kernels"]), tolerance=1e-6)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("name", CASES)
def test_no_value_is_stored_twice(name: str, remat: Remat) -> None:
    """Neither among the residuals, nor among what B leaves for W: q, k and v share one input."""
    case = CASES[name]()
    _, residuals, linear_inputs = forward(name, remat)(case.params, case.x, case.context)
    assert_all_differ([*residuals, *linear_inputs.values()])
    dy, inputs = normal(*case.x.shape), looked_at(name, remat, linear_inputs)
    weight_inputs = backward(name, remat)(case.params, residuals, inputs, dy, case.context)[2]
    assert_all_differ([*linear_inputs.values(), *jax.tree.leaves(weight_inputs)])
    factors = split(name, remat)[1].complete(weight_inputs, linear_inputs)
    for group, kernels in case.params["kernels"].items():
        assert factors[group].x.shape[-1] == next(iter(kernels.values())).shape[0]
        assert {name: dy.shape[-1] for name, dy in factors[group].dys.items()} == {
            name: kernel.shape[1] for name, kernel in kernels.items()
        }


def assert_all_differ(arrays: list[jax.Array]) -> None:
    """No two hold the same values in another shape, order or dtype; a broadcast copy is as its original."""
    found: dict[bytes, tuple] = {}
    for array in arrays:
        values = np.unique(np.asarray(array).astype(np.float64)).tobytes()
        assert values not in found, f"{array.dtype}{array.shape} is {found[values]} again"
        found[values] = array.dtype, array.shape


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("name", CASES)
def test_no_two_stored_arrays_hold_the_same_values(name: str, remat: Remat, dtype: str) -> None:
    """Run without compiling, and the layer's input is stored once."""
    case = CASES[name]() if dtype == "fp32" else in_bf16(CASES[name]())
    layer = split_layer(case.layer, case.params, case.x, context=case.context, remat=remat)
    y, residuals, linear_inputs = layer.forward(case.params, case.x, case.context)
    (others,) = [[leaf for leaf in residuals if leaf is not case.x]]
    assert len(others) == len(residuals) - 1
    assert_all_differ([case.x, y, *others, *linear_inputs.values()])


def test_what_must_differ_is_seen_to_be_the_same() -> None:
    x = normal(2, 3, 4)
    for copy in (x.T, x.reshape(4, 6), jnp.broadcast_to(x, (2, 2, 3, 4)), x.astype(jnp.bfloat16)):
        with pytest.raises(AssertionError, match="again"):
            assert_all_differ([x.astype(copy.dtype).astype(jnp.float32), copy])


def test_a_linear_input_that_b_needs_too_is_stored_once() -> None:
    """exp is its own derivative: B looks at what F left for W, and two groups share it."""

    def layer(params: Tree, x: jax.Array) -> jax.Array:
        inner = jnp.exp(x)
        return sum(dense(inner, kernels)["w"] for kernels in params["kernels"].values())

    params = {"kernels": {"one": {"w": normal(4, 4)}, "two": {"w": 2 * normal(4, 4)}}, "small": {}}
    case = LayerCase(layer, params, normal(2, 3, 4), ())
    _, dx, d_params = whole_backward(case, case.x)
    for remat in REMATS:
        split = split_layer(layer, params, case.x, context=(), remat=remat)
        _, residuals, linear_inputs = split.forward(params, case.x, ())
        got, _, weight_inputs = split.backward(params, residuals, linear_inputs, case.x, ())
        assert_all_differ([*residuals, *linear_inputs.values()])
        assert [inputs.x is None for inputs in weight_inputs.values()] == [remat == "none", True]
        assert set(linear_inputs) == split.looked_at == ({"one"} if remat == "none" else set())
        kernels = weight_gradients(split.complete(weight_inputs, linear_inputs))
        assert_leaves_close((got, kernels), (dx, d_params["kernels"]), tolerance=1e-6)


# Dtypes


def test_bf16_layers_leave_bf16_and_give_fp32_kernel_gradients() -> None:
    case = in_bf16(llama_layer())
    params, x = case.params, case.x
    layer = split_layer(case.layer, params, x, context=case.context, remat="selective")

    def run(params: Tree, x: jax.Array, context: tuple) -> tuple:
        y, residuals, inputs = layer.forward(params, x, context)
        return y, residuals, *layer.backward(params, residuals, inputs, y, context)

    y, residuals, dx, small, weight_inputs = jax.eval_shape(run, params, x, case.context)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((y, dx, residuals, weight_inputs))} == {"bfloat16"}
    assert {
        leaf.dtype.name for leaf in jax.tree.leaves((small, jax.eval_shape(weight_gradients, weight_inputs)))
    } == {"float32"}


# Layers that cannot be split


def test_a_group_of_kernels_is_used_once() -> None:
    def twice(params: Tree, x: jax.Array) -> jax.Array:
        return dense(dense(x, params["kernels"]["square"])["w"], params["kernels"]["square"])["w"]

    params = {"kernels": {"square": {"w": normal(4, 4)}}, "small": {}}
    with pytest.raises((AssertionError, ValueError), match="only once on the kernels 'square'"):
        split_layer(twice, params, normal(2, 3, 4), context=(), remat="full")


def test_every_group_of_kernels_is_used() -> None:
    params = {"kernels": {"used": {"w": normal(4, 4)}, "forgotten": {"w": normal(4, 4)}}, "small": {}}
    with pytest.raises(
        (AssertionError, ValueError), match="never calls dense on its kernels \\['forgotten'\\]"
    ):
        split_layer(
            lambda params, x: dense(x, params["kernels"]["used"])["w"],
            params,
            normal(2, 3, 4),
            context=(),
            remat="full",
        )
