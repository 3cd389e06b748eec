"""One rank of the PyTorch peer: a process that runs steps of torch.distributed.pipelining when told to.

    python -m benchmarks.torch_worker '{"rank": 0, "num_ranks": 4, "meeting": "FILE", "model": {...}}'

Each line on standard input names an experiment (``torch_peer.Experiment`` as JSON); the worker does one
whole step of it, gradients to zero, schedule, optimizer, and answers with one line. What an experiment needs
is made when it is first named. In between the worker blocks in a read: it takes no time from anybody else.

The model is that of configs/bench.yaml as one would write it in PyTorch: the q, k and v projections are one
matrix, gate and up another; RoPE, grouped-query attention by ``scaled_dot_product_attention``, untied head.
remat full is a non-reentrant checkpoint around each layer. One thread a process, fp32, fused AdamW, and no
clipping: PyTorch does less here than jaxpipe, which clips by the global norm.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
"""Schedules whose rank has one stage on the way down and one on the way up; others with two are looped."""


class Model(NamedTuple):
    """Sizes, and the text's: a microbatch is ``batch`` x ``sequence_length`` tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float
    rms_norm_eps: float
    sequence_length: int
    batch: int


class Layer(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, self.size = model.hidden_size, model.hidden_size // model.num_attention_heads
        self.heads = (model.num_attention_heads, model.num_key_value_heads, model.num_key_value_heads)
        self.attention_norm = nn.RMSNorm(hidden, eps=model.rms_norm_eps)
        self.qkv = nn.Linear(hidden, sum(self.heads) * self.size, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=model.rms_norm_eps)
        self.gate_up = nn.Linear(hidden, 2 * model.intermediate_size, bias=False)
        self.down = nn.Linear(model.intermediate_size, hidden, bias=False)
        frequencies = model.rope_theta ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(model.sequence_length), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.size).transpose(1, 2)
        q, k, v = heads.split(self.heads, dim=1)
        mixed = functional.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=self.heads[0] != self.heads[1]
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine)
        return torch.cat(turned, dim=-1)


class Stage(nn.Module):
    """Consecutive layers; the first stage has the embedding, the last one norm and head."""

    def __init__(self, model: Model, *, index: int, num_stages: int, recompute: bool) -> None:
        super().__init__()
        num_layers, more = divmod(model.num_hidden_layers, num_stages)
        assert not more, "the stages are equally long"
        is_first, is_last = index == 0, index == num_stages - 1
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size) if is_first else None
        self.layers = nn.ModuleList(Layer(model) for _ in range(num_layers))
        self.norm = nn.RMSNorm(model.hidden_size, eps=model.rms_norm_eps) if is_last else None
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False) if is_last else None
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def main(words: list[str]) -> int:
    """Join the other ranks, then do as told until standard input ends."""
    (word,) = words
    told = json.loads(word)
    rank, num_ranks, model = told["rank"], told["num_ranks"], Model(**told["model"])
    torch.set_num_threads(1)
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH:
        # that is jaxpipe's (training/devices.py), of whose process this one is a child
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    dist.init_process_group("gloo", init_method=f"file://{told['meeting']}", rank=rank, world_size=num_ranks)
    steps: dict[str, Callable[[], float | None]] = {}
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        if line not in steps:
            steps[line] = make_step(model, rank, num_ranks, **json.loads(line))
        print(json.dumps({"loss": steps[line]()}), flush=True)
    dist.destroy_process_group()
    return 0


def make_step(
    model: Model, rank: int, num_ranks: int, *, schedule: str, microbatches: int, remat: str
) -> Callable[[], float | None]:
    """A step of this rank; it gives the mean loss where the last stage is."""
    torch.manual_seed(rank)
    indices = stages_of(schedule, rank, num_ranks)
    num_stages = num_ranks * len(indices)
    modules = [
        Stage(model, index=index, num_stages=num_stages, recompute=remat == "full") for index in indices
    ]
    stages = [
        pipelining.PipelineStage(module, index, num_stages, torch.device("cpu"))
        for module, index in zip(modules, indices, strict=True)
    ]
    kind: Any = pipelining.schedules.get_schedule_class(schedule)
    pipeline = kind(
        stages if is_multi_stage(schedule) else stages[0],
        n_microbatches=microbatches,
        loss_fn=lambda logits, labels: functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
    )
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    size = (microbatches * model.batch, model.sequence_length + 1)
    text = torch.randint(model.vocab_size, size, generator=torch.Generator().manual_seed(0))
    inputs = [text[:, :-1]] if 0 in indices else []
    has_loss = num_stages - 1 in indices

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        pipeline.step(*inputs, **({"target": text[:, 1:], "losses": losses} if has_loss else {}))
        optimizer.step()
        return torch.stack(losses).mean().item() if has_loss else None

    return step


def is_multi_stage(schedule: str) -> bool:
    """Whether PyTorch's schedule takes several stages of a rank."""
    kind = pipelining.schedules.get_schedule_class(schedule)
    return issubclass(kind, pipelining.schedules.PipelineScheduleMulti)


def stages_of(schedule: str, rank: int, num_ranks: int) -> tuple[int, ...]:
    """The stages of a rank: one, or two."""
    if schedule in V_SHAPED:
        return rank, 2 * num_ranks - 1 - rank
    return (rank, rank + num_ranks) if is_multi_stage(schedule) else (rank,)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
