"""Why a layout lost: what of its time grew most against the best one, in words."""

from collections import defaultdict
from collections.abc import Mapping

from jaxpipe.planning.layouts import Task, mesh_fault, meshes
from jaxpipe.planning.predict import StepTime


def why_slower(time: StepTime, best: StepTime) -> str:
    """``3.1 % slower: bubble 18 % instead of 9 % of the step``."""
    slower = time.total / best.total - 1
    ours, theirs = _shares(time), _shares(best)
    name = max(ours, key=lambda name: ours[name] - theirs[name])
    here, there = ours[name] / time.total, theirs[name] / best.total
    return f"{slower:.1%} slower: {name} {here:.1%} of the step instead of {there:.1%}"


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
