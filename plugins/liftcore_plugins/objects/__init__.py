"""Own objects: a small family of models with reference semantics.

`module` (what holds), `variable` (what changes), `rngs` and `split` (random streams).
"""

from liftcore_plugins.objects.errors import ObjectError, StreamError
from liftcore_plugins.objects.module import Module
from liftcore_plugins.objects.rngs import Rngs, RngStream
from liftcore_plugins.objects.split import SplitRngs, restore_rngs, split_rngs
from liftcore_plugins.objects.variable import (
    BatchStat,
    Cache,
    Intermediate,
    Param,
    RngCount,
    RngKey,
    RngState,
    Variable,
)

__all__ = [
    "BatchStat",
    "Cache",
    "Intermediate",
    "Module",
    "ObjectError",
    "Param",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "SplitRngs",
    "StreamError",
    "Variable",
    "restore_rngs",
    "split_rngs",
]
