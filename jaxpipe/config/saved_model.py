"""The model of a run, from the configuration that its checkpoints hold: for tools that need nothing else.

``from_yaml`` would also look for the text on the disk, which a tool may not have.
"""

import yaml

from jaxpipe.errors import InputError
from jaxpipe.models.llama_config import LlamaConfig, RopeScaling


def model_of(text: str) -> LlamaConfig:
    """The model of the configuration that ``to_yaml`` wrote.

    Raises:
        InputError: it has none that this jaxpipe knows.
    """
    try:
        fields = yaml.safe_load(text)["model"]
        scaling = fields["rope_scaling"]
        return LlamaConfig(**fields | {"rope_scaling": None if scaling is None else RopeScaling(**scaling)})
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            f"the checkpoint's configuration must have a model that this jaxpipe knows, but: {error}; "
            "use the jaxpipe that wrote it"
        ) from error
