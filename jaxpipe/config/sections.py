"""The configuration: nested frozen dataclasses, one a section. ``--help`` prints their docstrings.

A key without a default has no value that suits most runs: the YAML file or a flag must give it.
Nothing here knows of devices or loads JAX, and nothing below ``training`` reads it.
"""

from dataclasses import dataclass, field
from typing import Literal

from jaxpipe.models.llama_config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text: documents as tokens, packed into samples of equal length."""

    path: str | tuple[str, ...] | None = None
    """A file, folder or glob (.txt, .py, .md, .jsonl, .parquet), a folder that `jaxpipe data prepare` has
    written, or a list of these; null: Python's standard library."""
    field: str = "text"
    """The field of a .jsonl line, or the column of a .parquet file, that holds its text."""
    tokenizer: str | None = None
    """A .json of tokenizers or a .model of sentencepiece; null: the one of prepared data, else bytes."""
    end_of_document: str | None = None
    """The token that ends a document; null: the tokenizer's own."""
    weights: tuple[float, ...] | None = None
    """A mixture: one weight for each entry of data.path, the share of samples that come from it; null: all
    entries are one text."""
    sequence_length: int
    """Tokens in a sample."""
    isolate_documents: bool = False
    """Attend only within a document; positions restart at each, and no label crosses from one into the
    next."""
    validation_fraction: float | None = None
    """Share of the files that is kept for validation, chosen by the hash of their names; null: 0.05, or as
    prepared."""


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices along each axis; the run uses dp x pp x tp of them."""

    dp: int = 1
    """Data parallelism: copies of the pipeline, each with its share of the batch."""
    pp: int = 4
    """Pipeline parallelism: ranks that hold consecutive layers."""
    tp: int = 1
    """Tensor parallelism: devices that share a rank; divides heads, kv heads and intermediate_size."""
    sequence_parallel: bool = False
    """Between the kernels, split activations and messages over tp along the sequence."""
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO over dp: 1 shards optimizer state and master weights, 2 gradients too, 3 weights too."""


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How a step runs through the ranks."""

    schedule: str | None = None
    """The order of the actions: a name from `jaxpipe schedule list`, or the path of a CSV file; null: 1f1b
    without chunks, interleaved with."""
    num_microbatches: int
    """Slices of the global batch in a step."""
    num_chunks: int | None = None
    """Stages per rank; null: as many as the schedule needs."""
    reverse_backward: bool = False
    """gpipe alone: the last microbatch's backward first, as drawn in its paper; other last bits."""
    memory_limit: int | None = None
    """auto alone: how many microbatches' activations of all its layers a rank may hold; null: any number."""
    transfer_ticks: Literal[1, 2] = 1
    """Ticks from an action to the use of its message elsewhere; 2 hides the transfer behind a tick."""
    fuse_backward: bool = False
    """Run a whole backward pass as one action, not as B and W on two ticks; pays on emulated devices."""
    schedule_recompute: bool = False
    """Run what remat full does again as an action of its own, R, which may stand where its rank would wait,
    not inside the backward; a schedule without R gets them."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of each stage, first stage first; null: as even as can be."""
    program: Literal["scan", "segments"] = "scan"
    """scan: one program for all ticks; segments: ticks of warm-up, steady state and drain with only what each
    needs: ranks wait less for each other, and compiling takes longer."""
    remat: Literal["full", "selective", "none"] = "full"
    """What backward computes again: full: the layer; selective: attention, norms, SwiGLU; none: nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The length of the run and the size of a step."""

    num_steps: int
    """Optimizer steps."""
    global_batch_size: int
    """Sequences in a step, over all microbatches and copies."""
    eval_every: int = 0
    """Steps from one evaluation to the next; 0: never."""
    eval_batches: int = 8
    """Batches in an evaluation, the same each time."""
    eval_batch_size: int | None = None
    """Sequences in such a batch; null: global_batch_size."""
    sample_prompt: str | None = None
    """After each evaluation a continuation of this text is shown and added to samples.jsonl; null: none."""
    sample_tokens: int = 64
    """Tokens of such a continuation, or fewer where the document ends."""
    sample_temperature: float = 0.8
    """Divides the logits before a token of it is drawn; 0: the most probable token."""
    sample_top_p: float = 0.95
    """Tokens of it are drawn from the most probable ones, which add up to this; 1: from all."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the matrix products; weights, sums and optimizer state stay float32."""
    non_finite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient norm is not finite: stop: ends the run; skip: changes nothing."""
    max_skipped_steps: int = 10
    """With skip: the run ends when so many steps in a row were skipped."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then a cosine."""

    learning_rate: float
    """The highest learning rate, reached after the warm-up."""
    min_learning_rate_ratio: float = 0.1
    """The last learning rate as a share of the highest."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0; one longer than the run is cut off by its end."""
    decay_steps: int | None = None
    """The step at which the cosine reaches the lowest learning rate; null: train.num_steps."""
    beta1: float = 0.9
    """Decay of the mean of the gradients."""
    beta2: float = 0.95
    """Decay of the mean of their squares."""
    eps: float = 1e-8
    """Added to the root of that mean."""
    weight_decay: float = 0.1
    """Decoupled decay of the matrices."""
    max_grad_norm: float = 1.0
    """The global gradient norm is clipped to this; 0: no clipping."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints, written to <run.dir>/checkpoints."""

    every: int = 0
    """Steps from one checkpoint to the next; 0: only at the end."""
    keep: int = 2
    """How many of the newest checkpoints stay on disk."""
    keep_best: bool = False
    """Save whenever an evaluation gives a lower loss than all before, and keep that checkpoint besides."""
    resume: bool = False
    """Continue the run in run.dir from its newest checkpoint."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where the run writes, its seed, and when it is given up."""

    dir: str | None = None
    """The run's folder; null: runs/<name of the YAML file>-<date and time>."""
    seed: int = 0
    """Seed of the initial weights and of the order of the samples."""
    log_every: int = 1
    """Steps from one logged line to the next."""
    tensorboard: bool = False
    """Write the curves for TensorBoard too, to <run.dir>/tensorboard."""
    wandb: str | None = None
    """Send them to this project of Weights & Biases too; WANDB_MODE=offline keeps them in run.dir."""
    peak_flops: float | None = None
    """FLOP/s of one device, for the MFU; null: known of many GPUs and TPUs that compute in bfloat16."""
    deterministic: bool = False
    """On GPUs, let XLA choose kernels that give the same bits in each run; slower. CPUs always do."""
    step_timeout: int | None = None
    """Seconds for one step, the slow first one too, one batch of an evaluation or 16 tokens of a sample; one
    that takes longer ends the run, which says where it stands; null: any number."""
    trace_step: int | None = None
    """The step whose ticks are timed, for jaxpipe explain, from 4 on; written to <run.dir>/ticks-<step>.json.
    It compiles the step a second time, with marks, and runs that twice; null: none."""
    stop_timeout: int = 55
    """Seconds from SIGTERM or Ctrl-C to the end; a step, evaluation or save that takes longer is given up."""


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Several processes, on one host or on many: each runs the same command, and all share run.dir's disk.

    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do for flags that are not given.
    """

    coordinator: str | None = None
    """Where the processes meet: process 0's host and a free port on it, as host:port."""
    num_processes: int | None = None
    """How many processes there are; each has an equal share of the devices."""
    process_id: int | None = None
    """Which of them this one is, from 0; process 0 writes and prints."""
    detect: bool = False
    """Let JAX find these three out from Slurm, Open MPI, Kubernetes or a TPU pod."""
    timeout: int = 100
    """Seconds that all have to start, and within which one that is dead or silent ends all others."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, whole."""

    model: LlamaConfig
    data: DataConfig
    mesh: MeshConfig = field(default_factory=MeshConfig)
    pipeline: PipelineConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
