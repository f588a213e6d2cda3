"""The repository's path; importing this file makes its package importable, if none is installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.append(str(ROOT))
