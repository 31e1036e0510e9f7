"""Host time of one call: models of many small arrays, of which a step reads or writes every one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax

import liftcore as lift
from tests.bench.blocks import EquinoxModel, Model, anew, arrays, read, read_cells, write, write_cells
from tests.bench.rounds import Contender, Limits, calling, threading
from tests.bench.table import Table
from tests.bench.timed import MICROSECONDS, timed

__all__ = ["FLAT", "OBJECTS", "contenders", "table"]

#: Variables of a model.
SIZES = (8, 70, 700)

FLAT, OBJECTS = "jax.jit, flat list", "lift.jit, objects"


def _reading(variables: int) -> dict[str, Contender]:
    """Every contender returns the sum of all variables."""
    flat, of_tree = arrays(variables), anew(read)
    tree = EquinoxModel(flat)
    return {
        FLAT: calling(jax.jit(of_tree), flat),
        OBJECTS: calling(lift.jit(anew(read_cells)), Model(flat)),
        "lift.jit, Equinox": calling(lift.jit(of_tree), tree),
        "eqx.filter_jit": calling(eqx.filter_jit(of_tree), tree),
    }


def _writing(variables: int) -> dict[str, Contender]:
    """Every contender gives each variable a new value, which the next call starts with."""
    flat, of_tree = arrays(variables), anew(write)
    tree, model = EquinoxModel(flat), Model(flat)
    step = lift.jit(anew(write_cells))

    def with_objects() -> Any:
        step(model)
        return model.blocks[0].kernel.value

    # The arrays of one call are there at the same time, so that waiting for the first is enough, and costs as little
    # in every contender.
    return {
        FLAT: threading(jax.jit(of_tree), flat, operator.itemgetter(0)),
        OBJECTS: lambda: with_objects,
        "lift.jit, Equinox": threading(lift.jit(of_tree), tree, lambda tree: tree.blocks[0].kernel),
        "eqx.filter_jit": threading(eqx.filter_jit(of_tree), tree, lambda tree: tree.blocks[0].kernel),
    }


_STEPS: Mapping[str, Callable[[int], dict[str, Contender]]] = {"reads all": _reading, "writes all": _writing}


def contenders(variables: int, step: str) -> dict[str, Contender]:
    """The contenders for a model of so many variables and a step that "reads all" or "writes all"; first is flat."""
    return _STEPS[step](variables)


def table(limits: Limits, sizes: Iterable[int] = SIZES) -> Table:
    """Times of all steps and sizes."""
    rows = {
        f"{variables:,} variables, {step}": functools.partial(contenders, variables, step)
        for variables in sizes
        for step in _STEPS
    }
    return timed("Dispatch", rows, limits, MICROSECONDS)
