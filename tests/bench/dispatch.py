"""Host time of one call: models of many small arrays, of which a step reads or writes every one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.rounds import Contender, Limits, compare
from tests.bench.table import Table

__all__ = ["FLAT", "contenders", "table"]

#: Leaves of a model. Each block has four, and a static name.
SIZES = (8, 100, 700)

FLAT = "jax.jit, flat list"


class _Block(lift.Module):
    def __init__(self, kernel: Any, bias: Any, scale: Any, shift: Any, name: str) -> None:
        self.kernel, self.bias = lift.Param(kernel), lift.Param(bias)
        self.scale, self.shift = lift.Param(scale), lift.Param(shift)
        self.name = name

    def cells(self) -> tuple[lift.Variable, ...]:
        return self.kernel, self.bias, self.scale, self.shift


class _Model(lift.Module):
    def __init__(self, arrays: Sequence[Any]) -> None:
        self.blocks = [_Block(*parts) for parts in _parts(arrays)]

    def cells(self) -> list[lift.Variable]:
        return [cell for block in self.blocks for cell in block.cells()]


class _EquinoxBlock(eqx.Module):
    kernel: Any
    bias: Any
    scale: Any
    shift: Any
    name: str = eqx.field(static=True)


class _EquinoxModel(eqx.Module):
    blocks: list[_EquinoxBlock]


def _parts(arrays: Sequence[Any]) -> Iterator[tuple[Any, Any, Any, Any, str]]:
    """What each block is made of."""
    for start in range(0, len(arrays), 4):
        kernel, bias, scale, shift = arrays[start : start + 4]
        yield kernel, bias, scale, shift, f"block {start}"


def _tree(arrays: Sequence[Any]) -> _EquinoxModel:
    return _EquinoxModel([_EquinoxBlock(*parts) for parts in _parts(arrays)])


def _arrays(leaves: int) -> list[Any]:
    return [jnp.full(4, float(index)) for index in range(leaves)]


def _sum(leaves: Iterable[Any]) -> Any:
    return functools.reduce(operator.add, leaves)


def _decayed(leaf: Any) -> Any:
    return leaf * 0.999


def _reading(leaves: int) -> dict[str, Contender]:
    """Every contender returns the sum of all leaves."""

    def of_tree(model: Any) -> Any:
        return _sum(jax.tree.leaves(model))

    def of_objects(model: _Model) -> Any:
        return _sum(cell.value for cell in model.cells())

    arrays = _arrays(leaves)
    tree = _tree(arrays)
    return {
        FLAT: _calling(jax.jit(of_tree), arrays),
        "lift.jit, objects": _calling(lift.jit(of_objects), _Model(arrays)),
        "lift.jit, Equinox": _calling(lift.jit(of_tree), tree),
        "eqx.filter_jit": _calling(eqx.filter_jit(of_tree), tree),
    }


def _calling(step: Callable[[Any], Any], model: Any) -> Contender:
    return lambda: functools.partial(step, model)


def _writing(leaves: int) -> dict[str, Contender]:
    """Every contender gives each leaf a new value, which the next call starts with."""

    def of_tree(model: Any) -> Any:
        return jax.tree.map(_decayed, model)

    def of_objects(model: _Model) -> None:
        for cell in model.cells():
            cell.value = _decayed(cell.value)

    arrays = _arrays(leaves)
    tree = _tree(arrays)
    model, step = _Model(arrays), lift.jit(of_objects)

    def with_objects() -> Any:
        step(model)
        return model.blocks[0].kernel.value

    # The arrays of one call are there at the same time, so that waiting for the first is enough, and costs as little
    # in every contender.
    return {
        FLAT: _threading(jax.jit(of_tree), arrays, operator.itemgetter(0)),
        "lift.jit, objects": lambda: with_objects,
        "lift.jit, Equinox": _threading(lift.jit(of_tree), tree, lambda tree: tree.blocks[0].kernel),
        "eqx.filter_jit": _threading(eqx.filter_jit(of_tree), tree, lambda tree: tree.blocks[0].kernel),
    }


def _threading(step: Callable[[Any], Any], model: Any, first: Callable[[Any], Any]) -> Contender:
    def run() -> Any:
        nonlocal model
        model = step(model)
        return first(model)

    return lambda: run


_STEPS: Mapping[str, Callable[[int], dict[str, Contender]]] = {"reads all": _reading, "writes all": _writing}


def contenders(leaves: int, step: str) -> dict[str, Contender]:
    """The contenders for a model of so many leaves and a step that "reads all" or "writes all"; the first is flat."""
    return _STEPS[step](leaves)


def table(limits: Limits, sizes: Iterable[int] = SIZES) -> Table:
    """Times of all steps and sizes."""
    rows = []
    names: tuple[str, ...] = ()
    for leaves in sizes:
        for step in _STEPS:
            timings = compare(contenders(leaves, step), limits)
            names = tuple(timings)
            cells = (f"{timing.median * 1e6:,.0f} ({timing.ratio:.2f}x)" for timing in timings.values())
            rows.append((f"{leaves} leaves, {step}", *cells))
    return Table(
        "Dispatch",
        ("step", *names),
        rows,
        f"Microseconds a call: median, and in brackets the median ratio to {FLAT} in the same round.",
    )
