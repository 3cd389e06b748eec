"""The layouts that a run may have: what the rules of the configuration allow, enumerated.

A layout is the mesh, the schedule with its sizes, and how memory is traded for time. Of choices of which one
is never worse the other is left out: tensor parallelism comes with sequence parallelism where the sequence
divides, and stays within a host; one rank runs its microbatches one after the other, B and W as one action.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.schedules.generators.catalog import GENERATORS, find_faults

Remat = Literal["full", "selective", "none"]

REMATS: tuple[Remat, ...] = ("full", "selective", "none")

_MOST_CHUNKS = 8
"""More stages a rank have never been worth their messages."""


class Layout(NamedTuple):
    """One way to lay a run out; the names are those of the configuration."""

    dp: int
    pp: int
    tp: int
    sequence_parallel: bool
    zero: int
    schedule: str
    num_chunks: int
    num_microbatches: int
    transfer_ticks: int
    fuse_backward: bool
    remat: Remat

    @property
    def num_stages(self) -> int:
        return self.pp * self.num_chunks

    @property
    def shares(self) -> int:
        """Into how many shares the tokens of a message are cut."""
        return self.tp if self.sequence_parallel else 1


@dataclass(frozen=True)
class Task:
    """What is to be trained, and on what.

    evaluation_batch: sequences in a batch of an evaluation, None where that is the global batch.
    num_devices, devices_per_host: of these as many as there are; ``tp`` stays within a host.
    writes_scores: whether attention writes its scores to memory, as on CPUs, which flash attention does not.
    """

    model: LlamaConfig
    sequence_length: int
    global_batch: int
    compute_dtype: str
    num_devices: int
    devices_per_host: int
    evaluation_batch: int | None = None
    writes_scores: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a number that is computed with."""
        return 2 if self.compute_dtype == "bfloat16" else 4

    def tokens(self, layout: Layout) -> int:
        """Of a microbatch, on one copy of the pipeline."""
        sequences = self.global_batch // (layout.dp * layout.num_microbatches)
        return sequences * self.sequence_length


def layouts(task: Task) -> Iterator[Layout]:
    """All layouts that may run."""
    for dp, pp, tp in meshes(task.num_devices):
        if mesh_fault(task, dp, pp, tp) is None:
            yield from _of_mesh(task, dp, pp, tp)


def meshes(num_devices: int) -> Iterator[tuple[int, int, int]]:
    """All dp, pp and tp whose product that is."""
    for tp in divisors(num_devices):
        for pp in divisors(num_devices // tp):
            yield num_devices // tp // pp, pp, tp


def mesh_fault(task: Task, dp: int, pp: int, tp: int) -> str | None:
    """Why no layout has this mesh, or None; the first reason."""
    model = task.model
    for name, size in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_key_value_heads", model.kv_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        if size % tp:
            return f"tp {tp} does not divide {name}={size}"
    if tp > 1 and task.devices_per_host % tp:
        return f"tp {tp} would leave a host of {task.devices_per_host} devices"
    if pp > model.num_hidden_layers:
        return f"pp {pp} is more than the {model.num_hidden_layers} layers"
    for batch in _batches(task):
        if batch % dp:
            return f"dp {dp} does not divide a batch of {batch} sequences"
    return None


def numbers_of_microbatches(task: Task, dp: int) -> list[int]:
    """Those into which every batch can be cut."""
    least = min(batch // dp for batch in _batches(task))
    return [m for m in divisors(least) if all(batch % (m * dp) == 0 for batch in _batches(task))]


def divisors(number: int) -> list[int]:
    """Of a number of at least 1, the smallest first."""
    low = [count for count in range(1, int(number**0.5) + 1) if number % count == 0]
    return sorted({*low, *(number // count for count in low)})


def _batches(task: Task) -> tuple[int, ...]:
    return (task.global_batch, task.evaluation_batch or task.global_batch)


def _of_mesh(task: Task, dp: int, pp: int, tp: int) -> Iterator[Layout]:
    has_shards = dp > 1 and task.model.hidden_size % dp == 0
    base = Layout(
        dp=dp,
        pp=pp,
        tp=tp,
        sequence_parallel=tp > 1 and task.sequence_length % tp == 0,
        zero=0,
        schedule="1f1b",
        num_chunks=1,
        num_microbatches=1,
        transfer_ticks=1,
        fuse_backward=True,
        remat="full",
    )
    for m in numbers_of_microbatches(task, dp):
        for schedule, num_chunks in _schedules(task, pp, m):
            for transfer_ticks, fuse_backward in _programs(pp):
                for zero in range(4) if has_shards else (0,):
                    for remat in REMATS:
                        yield base._replace(
                            zero=zero,
                            schedule=schedule,
                            num_chunks=num_chunks,
                            num_microbatches=m,
                            transfer_ticks=transfer_ticks,
                            fuse_backward=fuse_backward,
                            remat=remat,
                        )


def _programs(pp: int) -> Iterator[tuple[int, bool]]:
    """Transfer ticks, and whether B and W are one action where they follow each other."""
    if pp == 1:
        yield 1, True
        return
    for transfer_ticks in (1, 2):
        for fuse_backward in (False, True):
            yield transfer_ticks, fuse_backward


def _schedules(task: Task, pp: int, num_microbatches: int) -> Iterator[tuple[str, int]]:
    """Names and chunks. On one rank all are one."""
    if pp == 1:
        yield "1f1b", 1
        return
    layers = task.model.num_hidden_layers
    for name, generator in GENERATORS.items():
        least, most = generator.num_chunks
        for num_chunks in range(least, min(most or _MOST_CHUNKS, layers // pp) + 1):
            has_choice = most != least and num_chunks != generator.default_chunks
            if has_choice and layers % (pp * num_chunks):
                continue  # longest stages would wait for each other more than chunks save
            sizes = {"num_ranks": pp, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
            if not find_faults(name, **sizes):
                yield name, num_chunks
