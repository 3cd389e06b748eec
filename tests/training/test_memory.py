"""What a step holds: predicted as the compiler counts it, and less with each stage of ZeRO.

Compiled and never run. The steps are those of ``benchmarks.memory``: one model, a microbatch of 2 sequences
on each copy of the pipeline.
"""

from functools import cache
from typing import Any

import pytest

from benchmarks.memory import Measured, measure

TOLERANCE = 0.1
"""Of all bytes of a device. What lasts and all slots are exact; the work of a tick is an estimate."""


@cache
def _measured(flags: tuple[tuple[str, Any], ...]) -> Measured:
    return measure(dict(flags))


def step(**flags: Any) -> Measured:
    """``mesh__dp=2`` is ``--mesh.dp 2``."""
    return _measured(tuple(sorted((name.replace("__", "."), value) for name, value in flags.items())))


def mesh(dp: int, pp: int, tp: int = 1, *, zero: int = 0, sequence: bool = False) -> dict[str, Any]:
    return {
        "mesh__dp": dp,
        "mesh__pp": pp,
        "mesh__tp": tp,
        "mesh__zero": zero,
        "mesh__sequence_parallel": sequence,
    }


def pipeline(schedule: str, remat: str, *, fuse: bool = False, **others: Any) -> dict[str, Any]:
    others = {f"pipeline__{name}": value for name, value in others.items()}
    return {
        "pipeline__schedule": schedule,
        "pipeline__remat": remat,
        "pipeline__fuse_backward": fuse,
        **others,
    }


BF16 = {"train__compute_dtype": "bfloat16"}

STEPS: list[dict[str, Any]] = [
    {**mesh(1, 1), **pipeline("gpipe", "selective")},
    {**mesh(2, 1), **pipeline("1f1b", "none", fuse=True)},
    {**mesh(2, 1, zero=3), **pipeline("1f1b", "none"), **BF16},
    {**mesh(1, 4), **pipeline("1f1b", "full", layers_per_stage=(1, 2, 2, 3), transfer_ticks=2)},
    {**mesh(1, 4), **pipeline("zb_h1", "none"), "model__tie_word_embeddings": True},
    {**mesh(4, 2, zero=2), **pipeline("zb_h1", "selective"), **BF16},
    {**mesh(2, 2, 2, zero=3, sequence=True), **pipeline("1f1b", "full", fuse=True)},
    {**mesh(2, 2, 2, zero=1), **pipeline("interleaved", "none", num_chunks=2)},
    {**mesh(1, 2, 4, sequence=True), **pipeline("zb_v", "selective"), "model__vocab_size": 2047},
    {**mesh(2, 4, zero=1), **pipeline("dualpipe", "full")},
    {**mesh(4, 2, zero=3), **pipeline("dualpipe", "none"), **BF16},
    {**mesh(1, 4), **pipeline("chimera", "full", fuse=True)},
    {**mesh(2, 4), **pipeline("interleaved", "full", fuse=True, num_chunks=2)},
    {**mesh(1, 2), **pipeline("interleaved", "full", fuse=True, num_chunks=3), "model__num_hidden_layers": 6},
    {**mesh(1, 4), **pipeline("zb_v", "full"), **BF16},
    {**mesh(1, 8), **pipeline("chimera", "full", fuse=True)},
    {**mesh(1, 8), **pipeline("1f1b", "full"), "model__intermediate_size": 320},
    {**mesh(1, 4), **pipeline("zb_h1", "full", schedule_recompute=True), "model__vocab_size": 8192},
    {**mesh(2, 2), **pipeline("1f1b", "full", fuse=True, schedule_recompute=True), **BF16},
    {**mesh(2, 2), **pipeline("1f1b", "full", fuse=True), "model__vocab_size": 8192},
    {**mesh(2, 2, zero=3), **pipeline("1f1b", "full", fuse=True), "data__sequence_length": 64},
    {**mesh(1, 1), **pipeline("1f1b", "full", fuse=True), "data__sequence_length": 16},
    {**mesh(1, 2, zero=1), **pipeline("1f1b", "full", fuse=True), "data__sequence_length": 16},
]


@pytest.mark.parametrize("flags", STEPS, ids=lambda flags: "-".join(str(value) for value in flags.values()))
def test_the_prediction_is_what_the_compiler_counts(flags: dict[str, Any]) -> None:
    measured = step(**flags)
    assert measured.predicted.total == pytest.approx(measured.total, rel=TOLERANCE)


def test_quick_compilation_counts_the_same_bytes() -> None:
    """All the others compile with hardly any of LLVM's passes."""
    flags = {"mesh.dp": 2, "mesh.pp": 2, "mesh.zero": 2, "pipeline.remat": "none"}
    assert measure(flags).total == pytest.approx(measure(flags, {}).total, rel=0.01)


@pytest.mark.parametrize("remat", ["full", "none"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_each_stage_of_zero_holds_less(pp: int, remat: str) -> None:
    stages = [step(**mesh(2, pp, zero=zero), pipeline__remat=remat) for zero in range(4)]
    totals = [stage.total for stage in stages]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4
    # ZeRO 3 keeps no weights it has gathered, whatever remat keeps
    assert stages[3].temporary < stages[2].temporary
    assert _slots(stages[3]) == _slots(stages[2]) == _slots(stages[0])


@pytest.mark.parametrize("schedule", ["zb_h1", "dualpipe"])
def test_zero_3_holds_less_than_2_with_every_kind_of_slot(schedule: str) -> None:
    second, third = (step(**mesh(2, 4, zero=zero), **pipeline(schedule, "none")) for zero in (2, 3))
    assert third.total < second.total
    assert third.temporary < second.temporary
    assert _slots(third) == _slots(second)


def _slots(measured: Measured) -> tuple[int, ...]:
    memory = measured.predicted
    return memory.residuals, memory.linear_inputs, memory.weight_inputs, memory.messages


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_divides_messages_and_stash(tp: int) -> None:
    """With full remat the stash is the input of layers, which without it every device of a rank has whole."""
    flags = pipeline("1f1b", "full", fuse=True)
    whole, shares = (step(**mesh(1, 2, tp, sequence=sequence), **flags) for sequence in (False, True))
    assert shares.predicted.messages * tp == whole.predicted.messages
    assert shares.predicted.stash * tp == whole.predicted.stash
    assert shares.total < whole.total


def test_uneven_stages_hold_what_is_predicted_as_padding() -> None:
    """1 and 7 layers hold as much as 7 and 7, of which a rank of 8 would have half."""
    even, uneven = (
        step(**mesh(1, 2), **pipeline("1f1b", "full", fuse=True, layers_per_stage=layers), **model)
        for layers, model in (((7, 7), {"model__num_hidden_layers": 14}), ((1, 7), {}))
    )
    # not to the byte: a dynamic number of layers wants a table of them
    assert uneven.total == pytest.approx(even.total, rel=0.01)
    memory, padding = uneven.predicted, uneven.predicted.padding
    layers = memory.weights - 2 * 4 * 256 * 2048 // 2 - 4 * 256  # without vocabulary, last norm
    assert padding.state == pytest.approx(3 * layers * 6 / 7)
    assert padding.stash == pytest.approx(memory.stash * 6 / 7, abs=1)
    assert even.predicted.padding == (0, 0, 0)


@pytest.mark.parametrize(("dp", "times"), [(1, 1.4), (2, 2.1)])
def test_after_the_ticks_gradients_are_there_as_often_as_they_are_summed(dp: int, times: float) -> None:
    """Where the stash is small: what is summed over dp is written beside the sums; the norm copies none.

    The rest is a tick's work, of a third of the accumulators.
    """
    measured = step(**mesh(dp, 2), pipeline__remat="full", data__sequence_length=16)
    assert measured.temporary < times * measured.predicted.accumulators
    assert measured.predicted.total == pytest.approx(measured.total, rel=TOLERANCE)


def test_shards_are_what_zero_says() -> None:
    """Half of kernels and vocabulary on each of two copies; norm scales stay whole."""
    parts = [step(**mesh(2, 2, zero=zero), pipeline__remat="full").predicted for zero in range(4)]
    whole = parts[0]
    small = 4 * (2 * 4 + 1) * 256  # two scales in each of the four layers of a rank, and the last norm's
    assert [part.weights for part in parts[1:]] == [(whole.weights - small) // 2 + small] * 3
    assert [part.moments for part in parts[1:]] == [2 * parts[1].weights] * 3
    assert parts[1].accumulators == whole.accumulators
    assert parts[2].accumulators == parts[3].accumulators < 0.51 * whole.accumulators
    assert parts[0].compute_weights == parts[3].compute_weights == 0, "fp32 computes with the masters"
