"""The executor on one GPU: is it right, and what does it cost? ``make gpu-check``

Each part prints JSON lines on standard output; one that fails prints its error, the others still run, and
the exit code is 1. On one device there is one rank, so no messages: what is measured is the executor itself,
its loops, slots and ticks, against the same layers under plain autodiff.

    attention   cuDNN's flash attention and XLA's against a written-out one in fp32
    numerics    loss and gradients of a small Llama through the executor, against the un-pipelined ones on CPU
    speed       a whole step of a Llama of a billion parameters in bf16, remat full and none, timed in turn
                with the un-pipelined step; and the bytes that the compiler counts against those predicted
    loops       the same step with a number of layers that only the device knows, against a static one

All ends within six minutes: each part has its share of ``--time-limit``, after which it begins nothing more.

    model_flops_per_token = 6 matrix parameters + 6 layers (sequence_length + 1) heads head_dim
    mfu = tokens_per_second model_flops_per_token / peak

That is the formula of jaxpipe/models/flops.py: matrix parameters are those of the layers and the head, the
second term is causal attention. The peak is an option: dense bf16 of the device.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SHARES = {"attention": 1, "numerics": 3, "speed": 5, "loops": 2}
"""How the time limit is shared out among the parts that are run."""


def main(argv: Sequence[str] | None = None) -> int:
    """All parts; 0 if every check held, 1 if not, 2 without a GPU."""
    options = _parser().parse_args(argv)
    if options.platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax

    device = jax.devices()[0]
    if device.platform != options.platform:
        print(
            f"gpu_check: this check needs one GPU, but JAX finds {device.platform} devices only; run it on a "
            "machine with an NVIDIA GPU, with jaxpipe's extra cuda13 (or cuda12) installed",
            file=sys.stderr,
        )
        return 2
    from benchmarks import gpu_loops, gpu_numerics, gpu_speed

    workload, platform = gpu_speed.WORKLOADS[options.size], options.platform
    end_of = deadlines(time.monotonic(), options.time_limit, only=options.parts)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "device": lambda: iter([{"kind": device.device_kind, "jax": jax.__version__}]),
        "attention": lambda: gpu_numerics.check_attention(platform),
        "numerics": lambda: gpu_numerics.check_executor(platform, deadline=end_of["numerics"]),
        "speed": lambda: gpu_speed.measure(
            workload,
            platform,
            peak_tflops=options.peak_tflops,
            num_rounds=options.rounds,
            deadline=end_of["speed"],
        ),
        "loops": lambda: gpu_loops.measure(
            workload, platform, num_rounds=options.rounds, deadline=end_of["loops"]
        ),
    }
    rows = list(run_parts(parts, only=options.parts))
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0 if all(row.get("ok", True) for row in rows) else 1


def deadlines(now: float, limit: float, *, only: Sequence[str] | None) -> dict[str, float]:
    """Until when each part may begin something: its share of the limit after that of the parts before it."""
    chosen = {name: share for name, share in SHARES.items() if not only or name in only}
    total = sum(chosen.values()) or 1
    ends = accumulate(share / total * limit for share in chosen.values())
    return dict.fromkeys(SHARES, now) | {name: now + end for name, end in zip(chosen, ends, strict=True)}


def run_parts(parts: dict[str, Callable[[], Iterator[Row]]], *, only: Sequence[str] | None) -> Iterator[Row]:
    """Every row of every part, printed as it comes; an error ends its part alone."""
    for name, part in parts.items():
        if only and name not in only:
            continue
        try:
            for row in part():
                print(json.dumps({"part": name} | row), flush=True)
                yield {"part": name} | row
        except Exception as error:  # noqa: BLE001  whatever it is: told, counted, and the other parts still run
            traceback.print_exc()
            row = {"part": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
            print(json.dumps(row), flush=True)
            yield row


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--peak-tflops",
        type=float,
        default=989.0,
        help="dense bf16 peak for the MFU (default: H100 or H200, 989)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: %(default)s)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        help="seconds after which nothing more is begun (default: 300)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(SHARES), metavar="PART", help="of %(choices)s (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines to a file, too")
    # to try the check itself where there is no GPU
    parser.add_argument("--platform", choices=["gpu", "cpu"], default="gpu", help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=["1b", "tiny"], default="1b", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
