"""A configuration with another layout: what ``jaxpipe plan`` proposes, as keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxpipe.config.sections import Config, DistributedConfig
from jaxpipe.planning.layouts import Layout
from jaxpipe.schedules.generators.catalog import GENERATORS


def layout_keys(layout: Layout) -> dict[str, Any]:
    """The value of each key that a layout settles."""
    least, most = GENERATORS[layout.schedule].num_chunks
    return {
        "mesh.dp": layout.dp,
        "mesh.pp": layout.pp,
        "mesh.tp": layout.tp,
        "mesh.sequence_parallel": layout.sequence_parallel,
        "mesh.zero": layout.zero,
        "pipeline.schedule": layout.schedule,
        "pipeline.num_chunks": layout.num_chunks if least != most else None,
        "pipeline.num_microbatches": layout.num_microbatches,
        "pipeline.transfer_ticks": layout.transfer_ticks,
        "pipeline.fuse_backward": layout.fuse_backward,
        "pipeline.remat": layout.remat,
        "pipeline.layers_per_stage": None,
        "pipeline.memory_limit": None,
        "pipeline.reverse_backward": False,
        "pipeline.costs": None,
        "pipeline.schedule_recompute": False,
        "pipeline.program": "scan",
    }


def with_layout(config: Config, layout: Layout) -> Config:
    """The same run laid out so; how many processes there are is left open."""
    return replace(
        config,
        mesh=replace(config.mesh, **_of_section("mesh", layout_keys(layout))),
        pipeline=replace(config.pipeline, **_of_section("pipeline", layout_keys(layout))),
        distributed=DistributedConfig(),
    )


def changed_keys(config: Config, layout: Layout) -> dict[str, Any]:
    """Of the keys of a layout those that the configuration has otherwise."""
    return {key: value for key, value in layout_keys(layout).items() if _value(config, key) != value}


def _of_section(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in keys.items() if key.startswith(section + ".")}


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
