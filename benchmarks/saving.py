"""How much a save costs a run: the table in docs/measurements.md.

    python -m benchmarks.saving --rounds 5

The model of configs/bench.yaml, 1f1b, on four emulated devices. Stretches of steps take turns: without a
save, with one at the start whose files are written while the steps go on, and with one that is waited for.
One JSON line on standard output:

    state_bytes             parameters, both moments and the count, as a checkpoint holds them
    step_seconds            of each kind, all of a stretch over its steps: median, smallest and largest
    ratio                   over the stretch without a save of the same round
    blocked_seconds         how long the save itself kept the run, the conversion to canonical layout included
    written_seconds         from its start until the checkpoint was complete, with nothing else running
    resident_growth_bytes   what this process holds more after the last round than after the first
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import CONFIG, NUM_RANKS
from benchmarks.timing import ratios, spread, time_in_turn

if TYPE_CHECKING:
    from jaxpipe.training.state import TrainState

KINDS = ("none", "overlapped", "waited for")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="stretches of each kind")
    parser.add_argument("--steps", type=int, default=4, help="steps of a stretch")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(Path(directory), arguments.rounds, arguments.steps)), flush=True)
    return 0


def measure(directory: Path, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """The figures of one run."""
    from jaxpipe.training.devices import make_mesh  # loads JAX, which reads the environment

    mesh = make_mesh(dp=1, pp=NUM_RANKS, tp=1)

    import jax

    from jaxpipe.checkpoint.checkpoints import open_checkpoints
    from jaxpipe.config import from_yaml
    from jaxpipe.pipeline import make_loss_and_gradients
    from jaxpipe.training.grad_norm import make_global_norm
    from jaxpipe.training.plan import make_plan
    from jaxpipe.training.state import init_state, make_to_canonical
    from jaxpipe.training.step import compile_step, make_train_step, to_microbatches

    config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
    plan = make_plan(config, mesh)
    layout = plan.program.layout
    state = init_state(plan.init_params, plan.optimizer, layout=layout, mesh=mesh)
    text = _text(config.train.global_batch_size, config.data.sequence_length, config.model.vocab_size)
    num_microbatches = config.pipeline.num_microbatches
    batch = to_microbatches(text[:, :-1], text[:, 1:], num_microbatches=num_microbatches, mesh=mesh)
    constants = plan.make_constants()
    step = compile_step(
        make_train_step(
            make_loss_and_gradients(plan.program), plan.optimizer, global_norm=make_global_norm(layout, mesh)
        ),
        state,
        batch,
        constants=constants,
        mesh=mesh,
        sharding=layout.sharding,
    )
    to_canonical = make_to_canonical(state, layout=layout, mesh=mesh)
    blocked: list[float] = []
    resident: list[int] = []
    saved = 0

    def save() -> None:
        nonlocal saved
        saved += 1
        start = time.perf_counter()
        checkpoints.save(saved, to_canonical(state), {})
        blocked.append(time.perf_counter() - start)

    def save_and_wait() -> None:
        save()
        checkpoints.wait()

    def stretch(kind: str) -> None:
        nonlocal state
        if kind == "overlapped":
            save()
        elif kind == "waited for":
            save_and_wait()
        for _ in range(num_steps):
            state, _ = jax.block_until_ready(step(state, batch, constants))

    def after_round() -> None:
        checkpoints.wait()
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    with open_checkpoints(directory, keep=1) as checkpoints:
        kinds = {kind: partial(stretch, kind) for kind in KINDS}
        seconds = time_in_turn(kinds, num_rounds, after_round=after_round)
        written = [_time_of(save_and_wait) for _ in range(3)]
    each = {kind: [total / num_steps for total in values] for kind, values in seconds.items()}
    return {
        "state_bytes": _bytes(to_canonical, state),
        "steps": num_steps,
        "step_seconds": {kind: spread(values) for kind, values in each.items()},
        "ratio": {kind: ratios(each[kind], each["none"]) for kind in KINDS[1:]},
        "blocked_seconds": spread(blocked[2:]),
        "written_seconds": spread(written),
        "resident_growth_bytes": resident[-1] - resident[1],
    }


def _bytes(to_canonical: Any, state: "TrainState") -> int:
    import jax

    return sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(to_canonical, state))
    )


def _text(batch: int, sequence_length: int, vocab_size: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, vocab_size, (batch, sequence_length + 1), np.int32)


def _time_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
