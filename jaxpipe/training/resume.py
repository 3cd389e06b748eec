"""Where a run starts: anew, or after its newest whole checkpoint."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import yaml

from jaxpipe.checkpoint.checkpoints import Checkpoints
from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.config import Config, to_yaml
from jaxpipe.config.keys import keys
from jaxpipe.data import Batches, Tokenizer
from jaxpipe.errors import DamagedError, InputError
from jaxpipe.pipeline import Tree
from jaxpipe.training import run_tokenizer
from jaxpipe.training.loop import Start
from jaxpipe.training.processes import first_said, from_first, is_first
from jaxpipe.training.run_directory import RunDirectory
from jaxpipe.training.stopping.leaving import tell

NO_STEP = -1


class Found(NamedTuple):
    """The newest whole checkpoint.

    start: where the loop starts.
    canonical: its state.
    changes: in words, what the configuration changes.
    damaged: what is newer and not whole: for each step, what is wrong with it.
    """

    start: Start
    canonical: Tree
    changes: str
    damaged: Mapping[int, str]


def checkpoint_info(
    config: Config, batches: Batches, start: Start, *, tokenizer: Tokenizer
) -> dict[str, Any]:
    """What a checkpoint holds besides the arrays: whence a run that resumes from it starts.

    That is the position in the data, the configuration, the tokenizer's name, and what is known of
    evaluations. The only random numbers of a run are its initial weights and the order of its samples: both
    follow from ``run.seed``, which stands in the configuration, and the position.
    """
    evaluation = {"is_evaluated": start.is_evaluated, "best_loss": start.best_loss}
    return {
        "data": batches.get_state(),
        "config": to_yaml(config),
        "evaluation": evaluation,
        run_tokenizer.INFO: run_tokenizer.tokenizer_info(tokenizer),
    }


def read_checkpoint(
    config: Config, like: Tree, *, checkpoints: Checkpoints, batches: Batches
) -> Found | None:
    """The newest whole checkpoint, with ``batches`` set to go on after it; None if there is nothing yet.

    ``like`` is the ``canonical_template`` of the run.

    What is damaged is left alone, and told in ``Found.damaged``. Of several processes the first one looks
    which there are, each proves its share of the files, and all read what was found.

    Raises:
        InputError: there are checkpoints, and none is whole; or the newest whole one is of another model,
            its position is one in other data, or it has more steps than the run is to have.
    """
    damaged: dict[int, str] = {}
    steps = sorted(checkpoints.steps(), reverse=True) if is_first() else []
    while (step := from_first(steps.pop(0) if steps else NO_STEP)) != NO_STEP:
        damage = first_said(checkpoints.find_damage(step, share=(jax.process_index(), jax.process_count())))
        if damage is None:
            manifest = checkpoints.read_manifest(step)
            changes = _check(manifest, config)
            batches.set_state(manifest.info["data"])
            try:
                canonical = checkpoints.restore(step, like)
            except DamagedError as error:
                damage = str(error)
            else:
                start = Start(step, is_saved=True, **manifest.info["evaluation"])
                return Found(start, canonical, changes, damaged)
        damaged[step] = damage
    if damaged:
        raise InputError(
            f"none of the checkpoints in {checkpoints.directory} is whole: {_each(damaged)}; bring one back "
            "from a copy, or start a new run in another directory"
        )
    return None


def refuse_lost(directory: RunDirectory, checkpoints: Checkpoints) -> None:
    """Of a run that resumes and has no checkpoint: refuse if it had some, warn if it had begun.

    Raises:
        InputError: its metrics show that it has saved, damaged checkpoints were set aside, or it began
            with imported weights.
    """
    num_aside = checkpoints.num_set_aside()
    lines = directory.metrics.read_bytes().splitlines() if directory.metrics.exists() else []
    has_saved = _has_saved(directory, lines)
    is_imported = directory.imported.exists()
    if num_aside or has_saved or is_imported:
        signs = [f"{num_aside} damaged ones that were set aside"] * bool(num_aside)
        signs += ["metrics of a run that has saved some"] * has_saved
        signs += [f"{directory.imported.name}, which says that its first weights were imported"] * is_imported
        raise InputError(
            f"{checkpoints.directory} has no checkpoint to resume from, but there are {' and '.join(signs)}; "
            "bring a checkpoint back from a copy, or start a new run in another directory"
        )
    if lines:
        tell(
            f"warning: {checkpoints.directory} has no checkpoint yet; the run starts from its beginning, and "
            f"the {len(lines)} lines of its metrics are written anew"
        )


def _has_saved(directory: RunDirectory, lines: Sequence[bytes]) -> bool:
    """Whether a run with these metrics has completed a checkpoint.

    At its end it has. Before, the one of step k is complete when that of step 2 k begins, after whose
    metrics no later line stands earlier.
    """
    if lines and lines[-1].startswith(b'{"final"'):
        return True
    saved = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
    every = dict(_flat(saved)).get("checkpoint.every", 0) if isinstance(saved, Mapping) else 0
    steps = [int(number) for line in lines for number in re.findall(rb'^\{"step": (\d+)', line)]
    return bool(every) and max(steps, default=0) > 2 * every


def set_aside_damaged(checkpoints: Checkpoints, found: Found) -> None:
    """Make room for the steps that are to be done again, and warn."""
    if not found.damaged or not is_first():
        return
    tell(
        f"warning: not whole, and set aside as *.damaged in {checkpoints.directory}: "
        f"{_each(found.damaged)}; the run resumes from step {found.start.step} instead"
    )
    for step in found.damaged:
        checkpoints.set_aside(step)


def _each(damaged: Mapping[int, str]) -> str:
    return "; ".join(f"checkpoint {step} ({damage})" for step, damage in damaged.items())


def _check(manifest: Manifest, config: Config) -> str:
    """What the configuration changes, in words.

    The model must be the same, also in what no array's shape shows: epsilon, theta, RoPE scaling.
    """
    step = manifest.step
    changed = _changed(yaml.safe_load(manifest.info["config"]), yaml.safe_load(to_yaml(config)))
    model = {key: values for key, values in changed.items() if key.startswith("model.")}
    if model:
        values = ", ".join(f"{key}={now} (saved: {before})" for key, (before, now) in model.items())
        raise InputError(
            f"a run resumes with the model of its checkpoint, but {values}; use what was saved, or start anew"
        )
    if step > config.train.num_steps:
        raise InputError(
            f"train.num_steps={config.train.num_steps} must be at least {step}, which the run has done; "
            "raise it, or start anew"
        )
    return (
        ", ".join(f"{key} {before} -> {now}" for key, (before, now) in changed.items()) or "nothing changed"
    )


def _changed(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """``{key: (saved, wanted)}`` of the keys that differ, without those that say how a run is started.

    A key that there was not yet when it was saved had what is its default now.
    """
    before, now = dict(_flat(saved)), dict(_flat(wanted))
    new = {key: known.default for key, known in keys().items() if not key.startswith("model.")}
    pairs = {key: (before.get(key, new.get(key)), now.get(key)) for key in sorted({**before, **now})}
    return {
        key: (old, value)
        for key, (old, value) in pairs.items()
        if old != value and not _is_how_it_is_started(key)
    }


def _is_how_it_is_started(key: str) -> bool:
    return key in ("checkpoint.resume", "run.dir") or key.startswith("distributed.")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
