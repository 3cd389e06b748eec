"""The help page: every key with its docstring, its type and the value that the chosen file gives it."""

import dataclasses
from typing import Annotated

import tyro

from jaxpipe.config.sections import Config
from jaxpipe.models.llama_config import RopeScaling


@dataclasses.dataclass(frozen=True)
class _Page:
    """Pre-train a Llama model through a pipeline.

    Flags override the YAML file. Example: train.py configs/tiny.yaml --pipeline.schedule zb_h1
    --train.num_steps 20 --run.dir runs/x
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CONFIG.YAML")]
    """The YAML file; the defaults below are its values."""
    config: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]
    dry_run: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["--dry-run"])] = False
    """Print layout, parameters and bytes per device; compile and allocate nothing."""


def print_help(config: Config, *, file: str) -> None:
    """Print the page on standard output."""
    if config.model.rope_scaling is None:
        model = dataclasses.replace(config.model, rope_scaling=RopeScaling())
        config = dataclasses.replace(config, model=model)
    tyro.cli(
        _Page,
        prog="train.py",
        default=_Page(file, config),
        args=["--help"],
        use_underscores=True,
        config=(tyro.conf.AvoidSubcommands,),
    )
