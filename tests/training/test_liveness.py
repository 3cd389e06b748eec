"""What a body holds at once, for functions small enough to count by hand; X is an array of 8 x 8 fp32."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from jaxpipe.training.liveness import held_at_once

X = 8 * 8 * 4


def held(function: Callable[..., object], num_arguments: int, carried: tuple[int, ...] = ()) -> float:
    """In units of X."""
    arrays = [jnp.zeros((8, 8))] * num_arguments
    jaxpr = jax.make_jaxpr(function)(*arrays)
    return held_at_once(jaxpr, carried, lambda array: array.size * array.dtype.itemsize) / X


def test_a_product_lives_until_it_is_read_last() -> None:
    assert held(lambda a: a @ a @ a @ a, 1) == 2

    def keeps_the_first(a: Array) -> Array:
        first = a @ a
        return first @ a @ a @ first

    assert held(keeps_the_first, 1) == 3


def test_elementwise_work_has_no_buffer_unless_a_product_reads_it() -> None:
    assert held(lambda a: jnp.max(jnp.square(a + 1) * 2, axis=1) @ jnp.ones(8), 1) < 1
    assert held(lambda a: (a + 1) @ a, 1) == 2


def test_expensive_work_that_is_read_twice_has_one() -> None:
    def reads_twice(a: Array, function: Callable[[Array], Array]) -> Array:
        value = function(a)
        return jnp.sum(value * 2, axis=0) + jnp.sum(value * 3, axis=0)

    assert held(lambda a: reads_twice(a, jnp.exp), 1) == pytest.approx(1, abs=0.3)
    assert held(lambda a: reads_twice(a, jnp.square), 1) < 0.5


def test_what_is_not_needed_counts_for_nothing() -> None:
    def body(a: Array) -> Array:
        _ = a @ a @ a
        return jnp.sum(a, axis=0)

    assert held(body, 1) < 0.5


def test_a_carry_is_overwritten_and_what_is_only_read_is_not() -> None:
    def body(carry: Array, row: Array) -> Array:
        return jax.lax.dynamic_update_slice(carry, row[:1] * 2, (3, 0))

    assert held(body, 2, carried=(0,)) == 0
    assert held(body, 2) == 1


def test_a_loop_holds_its_body_once() -> None:
    def loop(a: Array) -> Array:
        return jax.lax.fori_loop(0, jnp.argmax(a[0]), lambda _, x: x @ a @ a, a)

    # the carry, since ``a`` is read on; and one product inside: the next takes the place of the carry
    assert held(loop, 1) == pytest.approx(2, abs=0.1)
