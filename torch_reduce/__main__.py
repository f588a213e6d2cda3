"""`python -m torch_reduce`."""

import sys

from .cli import main

sys.exit(main())
