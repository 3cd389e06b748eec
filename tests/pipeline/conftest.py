"""Random legal orders serve here too: their folder is on the path also when these tests run alone."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "lowering"))
