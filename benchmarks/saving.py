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
    resident_growth_bytes   what this process holds more after the last round than after the warm-up
"""

import argparse
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import CONFIG, NUM_RANKS
from benchmarks.timing import ratios, spread, time_in_turn

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


class Run:
    """A state that steps and saves; it stands for the loop of a run."""

    def __init__(self, directory: Path) -> None:
        from jaxpipe.training.devices import make_mesh  # loads JAX, which reads the environment

        mesh = make_mesh(dp=1, pp=NUM_RANKS, tp=1)

        import numpy as np

        from jaxpipe.checkpoint.checkpoints import open_checkpoints
        from jaxpipe.checkpoint.template import named_leaves
        from jaxpipe.config import from_yaml
        from jaxpipe.pipeline import make_loss_and_gradients
        from jaxpipe.training.grad_norm import make_global_norm
        from jaxpipe.training.plan import make_plan
        from jaxpipe.training.state import canonical_template, init_state, make_to_canonical
        from jaxpipe.training.step import compile_step, make_train_step, to_microbatches

        config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
        plan = make_plan(config, mesh)
        layout = plan.program.layout
        self.state = init_state(plan.init_params, plan.optimizer, layout=layout, mesh=mesh)
        shape = (config.train.global_batch_size, config.data.sequence_length + 1)
        text = np.random.default_rng(0).integers(0, config.model.vocab_size, shape, np.int32)
        self.batch = to_microbatches(
            text[:, :-1], text[:, 1:], num_microbatches=config.pipeline.num_microbatches, mesh=mesh
        )
        self.constants = plan.make_constants()
        norm = make_global_norm(layout, mesh)
        self.step = compile_step(
            make_train_step(make_loss_and_gradients(plan.program), plan.optimizer, global_norm=norm),
            self.state,
            self.batch,
            constants=self.constants,
            mesh=mesh,
            sharding=layout.sharding,
        )
        like = canonical_template(plan.init_params, plan.optimizer, layout=layout, mesh=mesh)
        self.state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in named_leaves(like).values())
        self.to_canonical = make_to_canonical(self.state, layout=layout, mesh=mesh)
        self.checkpoints = open_checkpoints(directory, keep=1)
        self.checkpoints.compile_for(like)
        self.blocked: list[float] = []

    def save(self) -> None:
        """Begin a save, and note how long that kept the run."""
        start = time.perf_counter()
        self.checkpoints.save(len(self.blocked), self.to_canonical(self.state), {})
        self.blocked.append(time.perf_counter() - start)

    def save_and_wait(self) -> None:
        """A save, whole."""
        self.save()
        self.checkpoints.wait()

    def stretch(self, kind: str, num_steps: int) -> None:
        """So many steps, after a save or none."""
        import jax

        if kind == "overlapped":
            self.save()
        elif kind == "waited for":
            self.save_and_wait()
        for _ in range(num_steps):
            self.state, _ = jax.block_until_ready(self.step(self.state, self.batch, self.constants))


def measure(directory: Path, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """The figures of one run."""
    run = Run(directory)
    resident: list[int] = []

    def after_round() -> None:
        run.checkpoints.wait()
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    with run.checkpoints:
        kinds = {kind: partial(run.stretch, kind, num_steps) for kind in KINDS}
        seconds = time_in_turn(kinds, num_rounds, after_round=after_round)
        num_warm_up = 2  # of the round that does not count
        written = time_in_turn({"save": run.save_and_wait}, 3)["save"]
    each = {kind: [total / num_steps for total in values] for kind, values in seconds.items()}
    return {
        "state_bytes": run.state_bytes,
        "steps": num_steps,
        "step_seconds": {kind: spread(values) for kind, values in each.items()},
        "ratio": {kind: ratios(each[kind], each["none"]) for kind in KINDS[1:]},
        "blocked_seconds": spread(run.blocked[num_warm_up:]),
        "written_seconds": spread(written),
        "resident_growth_bytes": resident[-1] - resident[0],
    }


if __name__ == "__main__":
    raise SystemExit(main())
