"""JAX transforms over any model object: split into plain arrays, run the transform, merge the result back.

    import liftcore as lift

The layers, from the lowest up; each module imports only what stands before it here:

    errors, paths, _jax            messages; key paths and how they are written; all that is not public JAX
    protocol, options              what a plugin's author reads, as data; transforms as decorators
    tables, registry, families     who provides what, found through entry points; whose object something is
    captures, contents, functions  references that a function closes over; what a value is made of; functions rebuilt
    statics                        static values compared by value
    filters, buckets, axes         which leaves; the lists in which JAX sees them; what an axis does to them
    prefixes, structure, walk      spellings, site by site; how an object graph is rebuilt, and taken apart
    aliasing                       every leaf gets its spec; what is shared gets one
    guards, plans                  whether a value is what it was; the fast way through a call that was made before
    functional                     split, merge, state, update, clone, stack, unstack
    binding, departure, engine     arguments to parameters; what a call changed; one lifted call

This module shows what users need of these, and what plugins provide: `lift.vmap`, `lift.Param`, a stranger's names too.
"""

from __future__ import annotations

import typing

from liftcore import errors, protocol, registry
from liftcore.axes import Carry
from liftcore.engine import Lifted, lift
from liftcore.filters import All, Any, In, Not, PathContains
from liftcore.functional import State, clone, merge, split, stack, state, unstack, update
from liftcore.registry import register

if typing.TYPE_CHECKING:
    # What plugins provide is looked up when it is asked for (`__getattr__`); type checkers know the built-in names.
    from liftcore_plugins.lifts.diff_state import DiffState as DiffState
    from liftcore_plugins.lifts.state_axes import StateAxes as StateAxes
    from liftcore_plugins.objects import BatchStat as BatchStat
    from liftcore_plugins.objects import Cache as Cache
    from liftcore_plugins.objects import Intermediate as Intermediate
    from liftcore_plugins.objects import Module as Module
    from liftcore_plugins.objects import Param as Param
    from liftcore_plugins.objects import RngCount as RngCount
    from liftcore_plugins.objects import RngKey as RngKey
    from liftcore_plugins.objects import Rngs as Rngs
    from liftcore_plugins.objects import Variable as Variable
    from liftcore_plugins.objects import restore_rngs as restore_rngs
    from liftcore_plugins.objects import split_rngs as split_rngs
    from liftcore_plugins.transforms.grad import grad as grad
    from liftcore_plugins.transforms.grad import value_and_grad as value_and_grad
    from liftcore_plugins.transforms.jit import jit as jit
    from liftcore_plugins.transforms.remat import remat as remat
    from liftcore_plugins.transforms.scan import scan as scan
    from liftcore_plugins.transforms.vmap import vmap as vmap

__all__ = [
    "All",
    "Any",
    "Carry",
    "In",
    "Lifted",
    "Not",
    "PathContains",
    "State",
    "clone",
    "errors",
    "lift",
    "merge",
    "protocol",
    "register",
    "registry",
    "split",
    "stack",
    "state",
    "unstack",
    "update",
]

registry.CATALOG.reserve(globals())


def __getattr__(name: str) -> typing.Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return registry.CATALOG.get(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *registry.CATALOG.names()})
