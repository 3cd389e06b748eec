"""A run, from its configuration to its exit code: what is wrong is told first, then everything is made ready.

The order matters. What the text or the devices refuse is told before the run's directory is touched, and a
resumed run's ``config.yaml`` changes only when nothing can be refused any more.

Several processes all do the same, but the first one alone owns the directory: processes.py.
"""

import dataclasses
import hashlib
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TextIO

import jax
from jax.sharding import Mesh

from jaxpipe.checkpoint.checkpoints import Checkpoints, open_checkpoints
from jaxpipe.config import Config, DistributedConfig, flatten, to_yaml
from jaxpipe.errors import NotFiniteError
from jaxpipe.planning.tick_file import TickTrace, to_text
from jaxpipe.schedules.csv_text import to_csv
from jaxpipe.training.atomic_write import write_text_atomically
from jaxpipe.training.curves import Curves, no_curves, open_curves
from jaxpipe.training.determinism import make_deterministic
from jaxpipe.training.generation.samples import compile_sampler
from jaxpipe.training.grad_norm import square_names
from jaxpipe.training.loop import Loop, Start, run_loop
from jaxpipe.training.metrics import open_metrics
from jaxpipe.training.own_schedule import with_own_schedule, write_own_schedule
from jaxpipe.training.plan import Plan, make_plan, utilization_of
from jaxpipe.training.preparation import (
    Prepared,
    compile_evaluation,
    compile_training,
    cut_for,
    mesh_of,
    prepare,
    shapes_of,
    skips,
)
from jaxpipe.training.processes import is_first, joined, same_in_all, wait_for_all
from jaxpipe.training.progress import make_console, open_progress, show_facts, show_message
from jaxpipe.training.report import compiled_facts, layout_facts, memory_facts, padding_facts, text_facts
from jaxpipe.training.resume import Found, checkpoint_info, read_checkpoint, refuse_lost, set_aside_damaged
from jaxpipe.training.run_directory import RunDirectory, claim_run_directory, run_directory, write_config
from jaxpipe.training.run_tokenizer import keep_tokenizer
from jaxpipe.training.state import (
    TrainState,
    canonical_template,
    from_canonical,
    init_state,
    make_to_canonical,
)
from jaxpipe.training.step_log import StepLog
from jaxpipe.training.stopping.endings import ending_of
from jaxpipe.training.stopping.interrupt import Stop, StopRequest, stop_on_signals
from jaxpipe.training.stopping.leaving import tell
from jaxpipe.training.stopping.shared_stop import SharedStop, make_highest
from jaxpipe.training.stopping.standing import Standing
from jaxpipe.training.tick_tracing import TickTracing, describer


def train(config: Config, *, dry_run: bool = False) -> int:
    """Train as ``config`` says, or with ``dry_run`` only tell what that takes; the exit code.

    0 when done or after SIGINT, 143 after SIGTERM, 1 when loss, gradients or parameters stop being finite
    (such steps may be skipped, but not too many in a row) or something cannot be written. Signals and limits
    may also end the whole process: stopping/.

    Raises:
        InputError: the files, the devices or a checkpoint show that it cannot be done.
    """
    try:
        if config.run.deterministic:
            make_deterministic()
        return _tell(config) if dry_run else _train_with_others(config)
    except (NotFiniteError, OSError) as error:
        ending = ending_of(error)
        if ending is None:
            raise
        tell(ending.sentence)
        return ending.code


def _train_with_others(config: Config) -> int:
    """Alone or as one of several processes; signals count from here."""
    standing = Standing()
    num_devices = config.mesh.dp * config.mesh.pp * config.mesh.tp
    with stop_on_signals(
        standing=standing, stop_timeout=config.run.stop_timeout, step_timeout=config.run.step_timeout
    ) as own:
        standing.prepare("joining the other processes")
        with joined(config.distributed, num_devices=num_devices, standing=standing):
            own.announces = is_first()
            # how the processes found each other is no part of what the run is
            return _run(dataclasses.replace(config, distributed=DistributedConfig()), own, standing)


def _tell(config: Config) -> int:
    """Layout, parameters and bytes per device; compiles and allocates nothing.

    Joins no other processes, so JAX finds this host's devices alone: on CPU as many as the mesh wants are
    emulated, and a mesh of more accelerators than are here wants ``JAX_PLATFORMS=cpu``. Where there are to
    be several processes, the first one tells.
    """
    mesh = mesh_of(config)
    plan = make_plan(config, mesh)
    console = make_console(enabled=not config.distributed.process_id)
    show_facts(console, "layout", layout_facts(config, plan, mesh))
    show_facts(console, "bytes per device", memory_facts(plan, shapes_of(config, mesh)))
    return 0


def _run(config: Config, own: StopRequest, standing: Standing) -> int:
    """The run of this process, alone or one of several."""
    assert config.run.dir is not None, "the parser chooses one"
    standing.prepare("reading the text and starting the devices")
    prepared = prepare(config)
    order = to_csv(prepared.plan.schedule).encode()
    digests = {
        "the text's digest": prepared.batches.get_state()["text"],
        "the schedule's digest": hashlib.sha256(order).hexdigest(),
    }
    same_in_all(flatten(config) | digests)
    claimed = (
        claim_run_directory(config.run.dir, resume=config.checkpoint.resume)
        if is_first()
        else nullcontext(run_directory(config.run.dir))
    )
    with claimed as directory:
        return _train(config, prepared, directory, _shared(own, prepared.mesh), standing)


def _shared(own: StopRequest, mesh: Mesh) -> Stop:
    """The stop of all processes."""
    return own if jax.process_count() == 1 else SharedStop(own, make_highest(mesh), announces=is_first())


def _train(
    config: Config, prepared: Prepared, directory: RunDirectory, stop: Stop, standing: Standing
) -> int:
    """From the checkpoint, if there is one, to the last step."""
    mesh, plan = prepared.mesh, prepared.plan
    resume, config = config.checkpoint.resume, with_own_schedule(config)
    if not resume:
        _write_config(config, directory, prepared)
    console = make_console(enabled=is_first())
    keep, keeps_best = config.checkpoint.keep, config.checkpoint.keep_best
    with open_checkpoints(directory.checkpoints, keep=keep, keeps_best=keeps_best) as checkpoints:
        standing.latest = checkpoints.latest
        standing.prepare("reading the checkpoint and placing the weights")
        like = canonical_template(plan.init_params, plan.optimizer, layout=plan.program.layout, mesh=mesh)
        found = read_checkpoint(config, like, checkpoints=checkpoints, batches=prepared.batches)
        start, state = _start(plan, mesh, found)
        if found:
            found = found._replace(canonical=None)  # as large as the state
            set_aside_damaged(checkpoints, found)
        elif resume and is_first():
            refuse_lost(directory, checkpoints)
        # without a checkpoint everything is done once more, the evaluation of step 0 too
        kept = start if found else start._replace(step=-1)
        with (
            _curves(config, directory, kept if resume else None, stop) as curves,
            _samples(config, directory, kept if resume else None) as samples,
            open_progress(console, config.train.num_steps, start_step=start.step) as line,
        ):
            is_other_schedule = _write_config(config, directory, prepared) if resume else False
            show_facts(console, "run", _facts(config, prepared, directory, found, is_other_schedule))
            log = StepLog(
                curves,
                line,
                config.run.log_every,
                names=square_names(state.params, plan.program.layout),
                skips=skips(config),
                max_skipped_steps=config.train.max_skipped_steps,
                utilization=utilization_of(config, mesh),
            )
            loop = _make_loop(
                config,
                prepared,
                state,
                checkpoints=checkpoints,
                log=log,
                samples=samples,
                standing=standing,
                tracing=_make_tracing(config, prepared, directory, state, start, log, standing),
            )
            checkpoints.compile_for(like)
            # else the first step would have to wait for those that compile longer
            standing.prepare("waiting until all processes have compiled")
            wait_for_all()
            is_done = run_loop(loop, state, stop, start=start)
    return 0 if is_done else stop.exit_code


def _facts(
    config: Config, prepared: Prepared, directory: RunDirectory, found: Found | None, is_other_schedule: bool
) -> list[tuple[str, str]]:
    """What a run says about itself at its start."""
    facts = [("directory", str(directory.path)), *text_facts(prepared.corpus, config.data)]
    if found:
        facts.append(("resumed", f"after step {found.start.step}; {found.changes}"))
    if is_other_schedule:
        facts.append(("schedule", "the file has another one than this run had"))
    if config.run.deterministic:
        facts.append(("deterministic", f"XLA_FLAGS={os.environ['XLA_FLAGS']}"))
    facts += layout_facts(config, prepared.plan, prepared.mesh)
    return facts + padding_facts(prepared.plan, shapes_of(config, prepared.mesh))


def _make_loop(
    config: Config,
    prepared: Prepared,
    state: TrainState,
    *,
    checkpoints: Checkpoints,
    log: StepLog,
    samples: TextIO,
    standing: Standing,
    tracing: TickTracing | None,
) -> Loop:
    """Compile what the loop runs itself, so that no step, evaluation or save has to."""
    mesh, layout = prepared.mesh, prepared.plan.program.layout
    standing.prepare("compiling the step")
    train_step, seconds = compile_training(config, prepared, state)
    show_facts(log.line.console, "compiled step", compiled_facts(train_step, seconds))
    standing.prepare("compiling the evaluation and the form of checkpoints")
    return Loop(
        train_step=train_step,
        constants=prepared.constants,
        batches=prepared.batches,
        cut=cut_for(config, mesh),
        to_canonical=make_to_canonical(state, layout=layout, mesh=mesh).lower(state).compile(),
        checkpoints=checkpoints,
        checkpoint_info=lambda at: checkpoint_info(
            config, prepared.batches, at, tokenizer=prepared.corpus.tokenizer
        ),
        evaluation=compile_evaluation(config, prepared, state),
        sampler=compile_sampler(
            config, prepared.corpus.tokenizer, prepared.plan.program, params=state.params
        ),
        samples=samples,
        eval_every=config.train.eval_every,
        save_every=config.checkpoint.every,
        saves_best=config.checkpoint.keep_best,
        num_steps=config.train.num_steps,
        log=log,
        standing=standing,
        tracing=tracing,
    )


def _make_tracing(
    config: Config,
    prepared: Prepared,
    directory: RunDirectory,
    state: TrainState,
    start: Start,
    log: StepLog,
    standing: Standing,
) -> TickTracing | None:
    """What times the ticks of ``run.trace_step``, if that is still to come."""
    step = config.run.trace_step
    if step is None or step <= start.step:
        return None
    path = directory.ticks(step)

    def keep(trace: TickTrace) -> None:
        if is_first():
            write_text_atomically(path, to_text(trace))
            show_message(log.line, f"step {step}: its ticks are in {path}; jaxpipe explain {directory.path}")

    standing.prepare("compiling the step with marks")
    timed_step, seconds = compile_training(config, prepared, state, timed=True)
    show_facts(log.line.console, "compiled step with marks", [("with marks", f"compiled in {seconds:.1f} s")])
    describe = describer(config, prepared.plan, prepared.mesh, step=step)
    return TickTracing(step, timed_step, describe, keep)


def _curves(
    config: Config, directory: RunDirectory, kept: Start | None, stop: Stop
) -> AbstractContextManager[Curves]:
    """The metrics, and where else they go; where another process writes them, they go nowhere."""
    if not is_first():
        return no_curves()
    if kept is None:
        return open_curves(config, directory, is_stopped=lambda: bool(stop))
    return open_curves(
        config,
        directory,
        is_stopped=lambda: bool(stop),
        resume_step=kept.step,
        is_evaluated=kept.is_evaluated,
    )


def _samples(config: Config, directory: RunDirectory, kept: Start | None) -> AbstractContextManager[TextIO]:
    """The file of samples, if there are to be any, or there were before the run was resumed."""
    are_none = config.train.sample_prompt is None and not directory.samples.exists()
    if are_none or not is_first():
        return open(os.devnull, "w", encoding="utf-8")
    if kept is None:
        return open_metrics(directory.samples)
    return open_metrics(directory.samples, resume_step=kept.step, is_evaluated=kept.is_evaluated)


def _write_config(config: Config, directory: RunDirectory, prepared: Prepared) -> bool:
    """Whether a run is resumed is no part of what it is. True if its schedule's file was another one."""
    if not is_first():
        return False
    is_other_schedule = write_own_schedule(config, directory, prepared.plan.schedule)
    keep_tokenizer(directory, prepared.corpus.tokenizer)
    checkpoint = dataclasses.replace(config.checkpoint, resume=False)
    write_config(directory, to_yaml(dataclasses.replace(config, checkpoint=checkpoint)))
    return is_other_schedule


def _start(plan: Plan, mesh: Mesh, found: Found | None) -> tuple[Start, TrainState]:
    """Where the loop starts, and the state there."""
    layout = plan.program.layout
    if found is None:
        return Start(), init_state(plan.init_params, plan.optimizer, layout=layout, mesh=mesh)
    return found.start, from_canonical(found.canonical, layout=layout, mesh=mesh)
