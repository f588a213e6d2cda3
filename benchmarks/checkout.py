"""The repository's path; importing this file makes its package and its examples importable, if none are installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path += [str(ROOT), str(ROOT / "examples")]
