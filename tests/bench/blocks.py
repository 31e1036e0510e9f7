"""Models of many small arrays: blocks of up to four, each with a static name."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift

__all__ = ["EquinoxModel", "Model", "anew", "arrays", "decayed", "read", "read_cells", "total", "write", "write_cells"]

_SLOTS = ("kernel", "bias", "scale", "shift")


def _parts(arrays: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each block's name, and its arrays by slot; the last block may have fewer."""
    for start in range(0, len(arrays), len(_SLOTS)):
        yield f"block {start}", dict(zip(_SLOTS, arrays[start:], strict=False))


class _Block(lift.Module):
    kernel: lift.Variable

    def __init__(self, name: str, arrays: dict[str, Any]) -> None:
        self.name = name
        for slot, array in arrays.items():
            setattr(self, slot, lift.Param(array))

    def cells(self) -> list[lift.Variable]:
        return [getattr(self, slot) for slot in _SLOTS if hasattr(self, slot)]


class Model(lift.Module):
    """The model as own objects."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.blocks = [_Block(name, parts) for name, parts in _parts(arrays)]

    def cells(self) -> list[lift.Variable]:
        """All variables, in the order of the arrays."""
        return [cell for block in self.blocks for cell in block.cells()]


class _EquinoxBlock(eqx.Module):
    name: str = eqx.field(static=True)
    kernel: Any = None
    bias: Any = None
    scale: Any = None
    shift: Any = None


class EquinoxModel(eqx.Module):
    """The model in Equinox."""

    blocks: list[_EquinoxBlock]

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.blocks = [_EquinoxBlock(name, **parts) for name, parts in _parts(arrays)]


def arrays(count: int) -> list[Any]:
    """So many arrays of shape (4,). A product of them is a number, unless there are many hundred."""
    return [jnp.full(4, 1 + index / 1000) for index in range(count)]


def total(leaves: Iterable[Any]) -> Any:
    """The sum of all."""
    return functools.reduce(operator.add, leaves)


def decayed(leaf: Any) -> Any:
    """What a step gives a leaf as its next value."""
    return leaf * 0.999


def read(tree: Any) -> Any:
    """A step that reads all arrays of a pytree."""
    return total(leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf))


def write(tree: Any) -> Any:
    """A step that gives every array of a pytree a new value."""
    return jax.tree.map(lambda leaf: decayed(leaf) if eqx.is_array(leaf) else leaf, tree)


def read_cells(model: Model) -> Any:
    """A step that reads all variables."""
    return total(cell.value for cell in model.cells())


def write_cells(model: Model) -> None:
    """A step that gives every variable a new value."""
    for cell in model.cells():
        cell.value = decayed(cell.value)


def anew(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A new function that does the same, so that it finds nothing that another has left in a cache."""
    return lambda model: step(model)
