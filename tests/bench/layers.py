"""Host time of one call with an Equinox model: the same module again, the one that was returned, or a new one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.blocks import anew, read, write
from tests.bench.rounds import Contender, Limits, calling, threading
from tests.bench.table import Table
from tests.bench.timed import MICROSECONDS, timed

__all__ = ["CASES", "Stack", "contenders", "table"]

#: Layers of a model, of which each has two arrays.
SIZES = (8, 100)

WIDTH = 4


class Stack(eqx.Module):
    """A model of linear layers."""

    layers: list[eqx.nn.Linear]
    activation: Callable[[Any], Any]

    def __init__(self, layers: int) -> None:
        keys = jax.random.split(jax.random.key(0), layers)
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys]
        self.activation = jnp.tanh


def _renewing(step: Callable[[Any], Any], model: Any) -> Contender:
    """Calls a step with a new model of new arrays each time."""
    copied = jax.jit(lambda arrays: jax.tree.map(jnp.copy, arrays))

    def ready() -> Callable[[], Any]:
        arrays = jax.block_until_ready(copied(eqx.filter(model, eqx.is_array)))  # type: ignore[no-untyped-call]
        return functools.partial(step, eqx.combine(arrays, model))

    return ready


def _returned(step: Callable[[Any], Any], model: Any) -> Contender:
    return threading(step, model, lambda model: model.layers[0].weight)


#: What each step does, and with which model it is called.
CASES: Mapping[str, tuple[Callable[[Any], Any], Callable[[Callable[[Any], Any], Any], Contender]]] = {
    "same module, reads all": (read, calling),
    "module returned and passed in again": (write, _returned),
    "new module every call, reads all": (read, _renewing),
}


def contenders(layers: int, case: str) -> dict[str, Contender]:
    """The contenders for a model of so many layers: the first has the arrays alone, in the module's pytree."""
    step, way = CASES[case]
    model = Stack(layers)

    return {
        "jax.jit, arrays": way(jax.jit(anew(step)), eqx.filter(model, eqx.is_array)),
        "lift.jit": way(lift.jit(anew(step)), model),
        "eqx.filter_jit": way(eqx.filter_jit(anew(step)), model),
    }


def table(limits: Limits, sizes: Iterable[int] = SIZES) -> Table:
    """Times of all cases and sizes."""
    rows = {
        f"{layers} layers, {case}": functools.partial(contenders, layers, case) for layers in sizes for case in CASES
    }
    return timed("Equinox", rows, limits, MICROSECONDS)
