"""The configuration of a run: its sections, and the strict parser of YAML and flags; never loads JAX."""

from jaxpipe.config.command import Command, from_saved, from_yaml, parse, parse_without_run
from jaxpipe.config.given_model import parse_for_model
from jaxpipe.config.keys import flatten
from jaxpipe.config.rules import faults
from jaxpipe.config.run_directory_rule import RUN_FILES
from jaxpipe.config.sections import (
    CheckpointConfig,
    Config,
    DataConfig,
    DistributedConfig,
    MeshConfig,
    OptimizerConfig,
    PipelineConfig,
    RunConfig,
    TrainConfig,
)
from jaxpipe.config.yaml_file import to_yaml

__all__ = [
    "RUN_FILES",
    "CheckpointConfig",
    "Command",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "MeshConfig",
    "OptimizerConfig",
    "PipelineConfig",
    "RunConfig",
    "TrainConfig",
    "faults",
    "flatten",
    "from_saved",
    "from_yaml",
    "parse",
    "parse_for_model",
    "parse_without_run",
    "to_yaml",
]
