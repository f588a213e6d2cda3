"""Many GPUs on torch.distributed: DTensors, collectives with a stated order, training that any number of ranks repeats.

Importing it tells DTensor what to do with the ops of this library. docs/scaling.md says what that costs.
"""

from . import _rules
from ._collectives import all_reduce, ddp_hook, reduce_scatter
from ._training import MicroBatches

__all__ = ["MicroBatches", "all_reduce", "ddp_hook", "reduce_scatter"]

_rules.register()
