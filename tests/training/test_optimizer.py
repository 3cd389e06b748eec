"""AdamW against optax's own composition, and the learning rate of single steps."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpipe.training.optimizer import AdamW, apply_gradients, init_moments, learning_rate_at

SETTINGS = AdamW(
    learning_rate=1e-2,
    min_ratio=0.1,
    warmup_steps=4,
    decay_steps=20,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    max_grad_norm=0.5,
)


def make_tree(seed: int):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "embedding": normal(5, 3),
        "layers": {"kernels": {"mlp": {"up": normal(2, 3, 4)}}, "small": {"scale": normal(2, 3)}},
        "final": {"scale": normal(3)},
        "head": normal(5, 3),
    }


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_equal_optax_adamw_behind_its_clipping(max_grad_norm, weight_decay):
    settings = SETTINGS._replace(max_grad_norm=max_grad_norm, weight_decay=weight_decay)
    decayed = {
        "embedding": True,
        "layers": {"kernels": {"mlp": {"up": True}}, "small": {"scale": False}},
        "final": {"scale": False},
        "head": True,
    }
    clip = optax.clip_by_global_norm(max_grad_norm) if max_grad_norm else optax.identity()
    adamw = optax.adamw(
        lambda count: learning_rate_at(settings, count + 1),
        0.9,
        0.95,
        1e-8,
        weight_decay=weight_decay,
        mask=decayed,
    )
    oracle = optax.chain(clip, adamw)
    params = theirs = make_tree(0)
    moments, state = init_moments(settings, params), oracle.init(theirs)
    for step in range(6):
        gradients = make_tree(step + 1)
        update = apply_gradients(settings, params, moments, gradients=gradients)
        params, moments = update.params, update.moments
        updates, state = oracle.update(gradients, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        assert float(update.grad_norm) == pytest.approx(float(optax.tree.norm(gradients)), rel=1e-6)
        # 1e-6: clipping multiplies before or after the division by the norm, one rounding apart
        chex.assert_trees_all_close(params, theirs, rtol=1e-6, atol=1e-7)


def test_clipping_leaves_exactly_the_norm_asked_for():
    """With beta1 = 0 the first moment is the clipped gradient itself."""
    settings = SETTINGS._replace(max_grad_norm=1e-3, beta1=0.0)
    params = make_tree(0)
    update = apply_gradients(settings, params, init_moments(settings, params), gradients=make_tree(1))
    assert float(optax.tree.norm(update.moments.mu)) == pytest.approx(1e-3, rel=1e-5)


def test_zero_gradients_are_clipped_without_nan():
    params = make_tree(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    update = apply_gradients(SETTINGS, params, init_moments(SETTINGS, params), gradients=zeros)
    chex.assert_tree_all_finite(update.params)


def test_padding_stays_zero():
    params, gradients = make_tree(0), make_tree(1)
    for tree in (params, gradients):
        tree["layers"]["kernels"]["mlp"]["up"] = tree["layers"]["kernels"]["mlp"]["up"].at[1].set(0)
    update = apply_gradients(SETTINGS, params, init_moments(SETTINGS, params), gradients=gradients)
    assert not np.any(update.params["layers"]["kernels"]["mlp"]["up"][1])


def test_the_learning_rate_rises_linearly_then_follows_a_cosine_to_its_floor():
    rates = [float(learning_rate_at(SETTINGS, step)) for step in range(1, 26)]
    assert rates[:4] == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2])
    halfway = 1e-3 + (1e-2 - 1e-3) * (1 + math.cos(math.pi / 2)) / 2
    assert rates[11] == pytest.approx(halfway)
    assert rates[19:] == pytest.approx([1e-3] * 6)


@pytest.mark.parametrize(("warmup_steps", "decay_steps"), [(0, 5), (5, 5), (8, 5), (1, 1), (0, 1)])
def test_every_length_of_warmup_gives_finite_positive_rates(warmup_steps, decay_steps):
    settings = SETTINGS._replace(warmup_steps=warmup_steps, decay_steps=decay_steps)
    rates = [float(learning_rate_at(settings, step)) for step in range(1, 12)]
    assert all(0 < rate <= 1e-2 * (1 + 1e-6) for rate in rates)
    assert rates[0] > 0
