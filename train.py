"""Pre-train a Llama model: ``python train.py configs/tiny.yaml --pipeline.schedule zb_h1``."""

import sys

from jaxpipe.config import parse
from jaxpipe.errors import InputError


def main() -> int:
    """Check the configuration, then load JAX and train; the exit code."""
    command = parse(sys.argv[1:])
    from jaxpipe.training.trainer import train  # loads JAX: nothing is wrong with the configuration by now

    try:
        return train(command.config, dry_run=command.dry_run)
    except InputError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the run began: from then on a signal ends it with a checkpoint
        sys.exit(130)
