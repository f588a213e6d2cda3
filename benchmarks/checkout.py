"""Where the repository is; and its package can be imported, built in place, where none is installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.append(str(ROOT))
