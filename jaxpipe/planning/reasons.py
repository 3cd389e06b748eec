"""Why a layout lost: what of its time grew most against the best one, in words."""

from collections import defaultdict
from collections.abc import Mapping

from jaxpipe.planning.layouts import Task, mesh_fault, meshes
from jaxpipe.planning.predict import StepTime, is_as_fast

_LEAST_SHARE = 0.001
"""Shares of a step that differ by less may print alike."""


def why_slower(time: StepTime, best: StepTime) -> str:
    """``but 3.1% slower: the bubble is 18.0% of the step instead of 9.0%``, to be said after that it fits."""
    if is_as_fast(time, best):
        return "and as fast as the first"
    slower = time.total / best.total - 1
    ours, theirs = _shares(time), _shares(best)
    name = max(ours, key=lambda name: ours[name] - theirs[name])
    here, there = ours[name] / time.total, theirs[name] / best.total
    if here - there < _LEAST_SHARE:  # all grew with it
        return f"but {slower:.1%} slower: {name} {ours[name] - theirs[name]:.2g} s more"
    return f"but {slower:.1%} slower: {name} {here:.1%} of the step instead of {there:.1%}"


def meshes_left_out(task: Task) -> Mapping[str, list[str]]:
    """Why meshes of so many devices are none of the layouts: reason -> meshes."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for dp, pp, tp in meshes(task.num_devices):
        fault = mesh_fault(task, dp, pp, tp)
        if fault is not None:
            found[fault].append(f"{dp}x{pp}x{tp}")
    return found


def _shares(time: StepTime) -> dict[str, float]:
    """Seconds of a step by what they are spent on."""
    counted = time.recomputation + time.tensor + time.shards + time.ends
    return {
        "the bubble is": time.ticks - time.work,
        "recomputation takes": time.recomputation,
        "talk over tp takes": time.tensor,
        "ZeRO in every microbatch takes": time.shards,
        "embedding and head take": time.ends,
        "sums over dp take": time.reduction,
        "weights and optimizer take": time.once - time.reduction,
        "layers take": max(time.work - counted, 0.0),
    }
