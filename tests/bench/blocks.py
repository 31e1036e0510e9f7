"""Models of many small arrays: blocks of up to four, each with a static name."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp

import liftcore as lift

__all__ = ["EquinoxModel", "Model", "arrays", "decayed", "total"]

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
