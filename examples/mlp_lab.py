"""A pipeline on the bench: an MLP of three stages, four microbatches, once with GPipe and once with 1F1B.

    python examples/mlp_lab.py

Three emulated devices run the real executor. Each F takes a fixed time and each backward twice as long, since
the layers wait; so what is measured is the schedule, not this machine. You see when each rank did what, how
much of the time it was idle against what the simulator says, and that loss and gradients equal those of one
device.

What to look for: both schedules have the same bubble, (p-1)/(m+p-1) = 1/3, but GPipe holds all four
microbatches on every rank, and 1F1B only as many as there are ranks from here to the end: 3, 2, 1. The
executor's messages travel at the end of a tick, when neighbours have ended too; so actions that are not
equally long wait for each other.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

NUM_STAGES, NUM_MICROBATCHES, BATCH, SEQUENCE, HIDDEN, VOCAB_SIZE = 3, 4, 2, 8, 16, 32

FLAGS = f"--xla_force_host_platform_device_count={NUM_STAGES}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402 (the devices must be asked for first)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402

from jaxpipe.lowering import lower  # noqa: E402
from jaxpipe.pipeline import (  # noqa: E402
    Batch,
    Layout,
    LossAndGradients,
    Program,
    Settings,
    StageContract,
    Tree,
    dense,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.schedules import Kind, Schedule, build, simulate, time_grid  # noqa: E402

TOLERANCE = 1e-5
"""Of each gradient's largest value: fp32 sums in another order are off by about 1e-6."""


class Event(NamedTuple):
    """What a rank did, in seconds."""

    rank: int
    kind: Kind
    microbatch: int
    start: float
    end: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--forward", type=float, default=0.05, metavar="SECONDS", help="of one F (default 0.05)"
    )
    seconds = parser.parse_args(argv).forward
    if not 0.001 <= seconds <= 10:
        parser.error(f"--forward={seconds:g} must be between 0.001 and 10 seconds")
    params, batch = make_params(), make_batch()
    expected = on_one_device(params, batch)
    print(f"{NUM_STAGES} stages, {NUM_MICROBATCHES} microbatches; one device: loss {expected.loss:.6f}\n")
    worst = 0.0
    for name in ("gpipe", "1f1b"):
        schedule = build(name, num_ranks=NUM_STAGES, num_microbatches=NUM_MICROBATCHES)
        got, events = on_three_devices(schedule, params, batch, seconds=seconds)
        worst = max(worst, report(schedule, got, expected, events=events, seconds=seconds))
    if worst > TOLERANCE:
        print(
            f"a gradient is off by {worst:.1e} of its largest value, more than {TOLERANCE:.0e}",
            file=sys.stderr,
        )
    return int(worst > TOLERANCE)


# The model


def make_layer(wait: Callable[[jax.Array, Tree], jax.Array]) -> Callable[..., jax.Array]:
    """``x + down(gelu(up(x)))``, which takes as long as ``wait`` does."""

    def layer(params: Tree, x: jax.Array, constants: Tree, extras: Tree) -> jax.Array:
        inner = dense(wait(x, extras), params["kernels"]["up"])["up"]
        return x + dense(jax.nn.gelu(inner), params["kernels"]["down"])["down"]

    return layer


def final(params: Tree, y: jax.Array) -> jax.Array:
    return y * params["scale"].reshape((1,) * (y.ndim - 1) + (-1,))


def make_params() -> Tree:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32)

    return {
        "embedding": normal(VOCAB_SIZE, HIDDEN),
        "layers": {
            "kernels": {
                "up": {"up": normal(NUM_STAGES, HIDDEN, 2 * HIDDEN)},
                "down": {"down": normal(NUM_STAGES, 2 * HIDDEN, HIDDEN)},
            },
            "small": {},
        },
        "final": {"scale": jnp.ones(HIDDEN)},
        "head": normal(VOCAB_SIZE, HIDDEN),
    }


def make_batch() -> Batch:
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, (NUM_MICROBATCHES, BATCH, SEQUENCE + 1))
    number = np.broadcast_to(np.arange(NUM_MICROBATCHES)[:, None], (NUM_MICROBATCHES, BATCH))
    return Batch(
        jnp.asarray(tokens[..., :-1], jnp.int32),
        jnp.asarray(tokens[..., 1:], jnp.int32),
        {"microbatch": jnp.asarray(number, jnp.int32)},
    )


# One device, three devices


def on_one_device(params: Tree, batch: Batch) -> LossAndGradients:
    """No pipeline and no microbatches: all layers in turn, all sequences at once, and autodiff."""
    layer = make_layer(lambda x, extras: x)
    tokens, labels = (leaf.reshape(-1, SEQUENCE) for leaf in (batch.tokens, batch.labels))

    def loss(params: Tree) -> jax.Array:
        x = params["embedding"][tokens]
        for stage in range(NUM_STAGES):
            x = layer(jax.tree.map(lambda leaf: leaf[stage], params["layers"]), x, {}, {})  # noqa: B023
        log_probabilities = jax.nn.log_softmax(final(params["final"], x) @ params["head"].T)
        return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1))

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    return LossAndGradients(value, jnp.int32(labels.size), gradients)


def on_three_devices(
    schedule: Schedule, params: Tree, batch: Batch, *, seconds: float
) -> tuple[LossAndGradients, list[Event]]:
    """The pipelined step, and when each rank did what in it."""
    events: list[Event] = []
    layout = Layout(schedule.placement, (1,) * NUM_STAGES, VOCAB_SIZE)
    mesh = jax.make_mesh((1, NUM_STAGES), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2)
    program = Program(
        StageContract(make_layer(make_clock(events, seconds)), final),
        lower(schedule, fuse_backward=True),
        layout,
        mesh,
        Settings(remat="none"),
    )
    step = jax.jit(make_loss_and_gradients(program))
    staged = to_stage_layout(params, layout)
    jax.block_until_ready(step(staged, batch, {}))  # compiles; the second run is the one to look at
    events.clear()
    result = jax.block_until_ready(step(staged, batch, {}))
    return result._replace(gradients=to_canonical_layout(result.gradients, layout)), events


def make_clock(events: list[Event], seconds: float) -> Callable[[jax.Array, Tree], jax.Array]:
    """``wait(x, extras)`` is x, after ``seconds``; its backward pass takes twice as long. Both are noted."""

    def note(kind: Kind, x: jax.Array, microbatch: jax.Array) -> jax.Array:
        def on_host(rank: np.ndarray, microbatch: np.ndarray, x: np.ndarray) -> np.ndarray:
            start = time.perf_counter()
            time.sleep(seconds * (1 if kind is Kind.F else 2))
            events.append(Event(int(rank), kind, int(microbatch), start, time.perf_counter()))
            return x

        same = jax.ShapeDtypeStruct(x.shape, x.dtype)
        noted = jax.pure_callback(on_host, same, jax.lax.axis_index("pp"), microbatch, x)
        return jax.lax.pcast(noted, "pp", to="varying")

    @jax.custom_vjp
    def wait(x: jax.Array, microbatch: jax.Array) -> jax.Array:
        return note(Kind.F, x, microbatch)

    def forward(x: jax.Array, microbatch: jax.Array) -> tuple[jax.Array, jax.Array]:
        return wait(x, microbatch), microbatch

    def backward(microbatch: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
        return note(Kind.BW, dy, microbatch), None

    wait.defvjp(forward, backward)
    return lambda x, extras: wait(x, extras["microbatch"][0])


# What was seen


def report(
    schedule: Schedule,
    got: LossAndGradients,
    expected: LossAndGradients,
    *,
    events: list[Event],
    seconds: float,
) -> float:
    """Print it; returns by how much the worst gradient is off, relative to its largest value."""
    predicted, in_ticks = (simulate(schedule, sync=sync) for sync in ("async", "neighbor"))
    print(f"{schedule.name}: predicted, in units of one F")
    print(time_grid(schedule, predicted, width=80))
    print(f"\n{schedule.name}: measured, one column for each {1000 * seconds:g} ms")
    print(draw(events, seconds=seconds))
    idle = 1 - sum(event.end - event.start for event in events) / (NUM_STAGES * makespan(events))
    print(
        f"\nbubble: predicted {predicted.bubble_fraction:.1%} if each message travels by itself, "
        f"{in_ticks.bubble_fraction:.1%} in ticks; measured {idle:.1%}"
    )
    print(f"microbatches held: {'/'.join(map(str, predicted.peak_until_weight))}")
    worst = largest_difference(got.gradients, expected.gradients)
    print(f"loss {got.loss:.6f}; largest difference of any gradient element from one device: {worst:.1e}\n")
    return worst


def makespan(events: list[Event]) -> float:
    return max(event.end for event in events) - min(event.start for event in events)


def draw(events: list[Event], *, seconds: float) -> str:
    """One line a rank; a backward is two columns wide."""
    first = min(event.start for event in events)
    lines = []
    for rank in range(NUM_STAGES):
        line = ""
        for event in sorted((event for event in events if event.rank == rank), key=lambda event: event.start):
            label = f"{'F' if event.kind is Kind.F else 'B'}{event.microbatch}"
            line = line.ljust(2 * round((event.start - first) / seconds), ".") + label.ljust(2)
            if event.kind is Kind.BW:
                line += "  "
        lines.append(f"rank {rank} |{line}")
    return "\n".join(lines)


def largest_difference(got: Tree, expected: Tree) -> float:
    return max(
        float(np.abs(np.asarray(leaf) - wanted).max() / np.abs(wanted).max())
        for leaf, wanted in zip(jax.tree.leaves(got), map(np.asarray, jax.tree.leaves(expected)), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
