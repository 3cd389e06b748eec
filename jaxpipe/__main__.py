"""``python -m jaxpipe`` is the command ``jaxpipe``."""

import sys

from jaxpipe.cli import main

sys.exit(main())
