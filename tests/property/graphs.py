"""Random object graphs, as data, and how to build one.

A `Blueprint` is immutable, so that one graph can be built any number of times, around any arrays, with the objects of
all copies in one order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from liftcore_plugins.objects import BatchStat, Module, Param, Variable

__all__ = [
    "KINDS",
    "STATICS",
    "Affine",
    "Blueprint",
    "Box",
    "Fixed",
    "Leaf",
    "Link",
    "LoRA",
    "Object",
    "Pair",
    "Point",
    "Setting",
    "Tree",
    "array",
    "build",
]


class Box(Module):
    """Holds anything."""

    def method(self) -> int:
        return len(vars(self))


class LoRA(Param):
    """A kind that declares no tag of its own."""

    __slots__ = ()


class Affine(eqx.Module):
    """A tree module."""

    kernel: Any
    rest: Any
    name: str = eqx.field(static=True, default="affine")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A plain pytree."""

    first: Any
    second: Any


class Point(NamedTuple):
    """Another one."""

    x: Any
    y: Any


class Config:
    """Compares by identity."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Compares by value; `origin` tells whose it is."""

    width: int
    origin: int = dataclasses.field(compare=False)


def free(*arguments: Any) -> int:
    return len(arguments)


#: `Setting` stands for one of the graph's own.
STATICS: tuple[Any, ...] = ("text", None, Config(), Config(), free, Setting, 1, True, 1.0, 2)
VARIABLES: dict[str, type[Variable]] = {"param": Param, "stat": BatchStat, "plain": Variable, "lora": LoRA}
KINDS = ("box", "list", "dict", *VARIABLES)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array, or a Python number."""

    seed: int
    shape: tuple[int, ...]
    form: str = "float"  # "float" or "int" for arrays of JAX, "numpy", "number"


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A static value, by its place in `STATICS`."""

    number: int


@dataclasses.dataclass(frozen=True)
class Link:
    """One of the blueprint's objects."""

    number: int


@dataclasses.dataclass(frozen=True)
class Tree:
    """A value without identity, around others."""

    form: str
    children: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Object:
    """A value with identity: a Box, a list or dict below one, or a variable, whose contents are one entry."""

    kind: str
    entries: tuple[tuple[Any, Any], ...]


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A graph: the objects, and the arguments that lead to them."""

    objects: tuple[Object, ...]
    roots: tuple[Any, ...]


def array(leaf: Leaf, lane: int = 0) -> Any:
    """The value of a leaf; small whole numbers, so that sums are exact."""
    if leaf.form == "number":
        return float(leaf.seed + lane)
    dtype = np.int32 if leaf.form == "int" else np.float32
    value = (np.arange(np.prod(leaf.shape)).reshape(leaf.shape) + leaf.seed + lane).astype(dtype)
    return value if leaf.form == "numpy" else jnp.asarray(value)


def _tree(form: str, parts: list[Any]) -> Any:
    match form:
        case "list":
            return parts
        case "dict":
            return dict(zip("abc", parts, strict=False))
        case "affine":
            return Affine(parts[0], tuple(parts[1:]))
        case "pair":
            return Pair(parts[0], tuple(parts[1:]))
        case "point":
            return Point(parts[0], parts[1:])
        case "partial":
            return functools.partial(free, *parts)
        case "method" if isinstance(parts[0], Box):
            return (parts[0].method, *parts[1:])
        case "closure" if isinstance(parts[0], (Module, Variable)):
            return (_closing_over(parts[0]), *parts[1:])
        case _:
            return tuple(parts)


def _closing_over(obj: Any) -> Callable[[], Any]:
    return lambda: obj


def build(
    blueprint: Blueprint, value: Callable[[int, Leaf], Any] = lambda _, leaf: array(leaf), origin: int = 0
) -> tuple[Any, list[Any]]:
    """Builds a graph.

    Args:
      blueprint: what to build.
      value: `value(n, leaf)`, the array for the n-th leaf.
      origin: what its settings are marked with.

    Returns:
      The arguments, a tuple, and the objects by number.
    """
    made: list[Any] = []
    for obj in blueprint.objects:
        match obj.kind:
            case "box":
                made.append(Box())
            case "list":
                made.append([])
            case "dict":
                made.append({})
            case kind:
                made.append(VARIABLES[kind](0))
    count = iter(range(10**6))

    def entry(one: Any) -> Any:
        match one:
            case Leaf():
                return value(next(count), one)
            case Fixed(number):
                return Setting(1, origin) if STATICS[number] is Setting else STATICS[number]
            case Link(number):
                return made[number]
            case _:
                return _tree(one.form, [entry(child) for child in one.children])

    for obj, description in zip(made, blueprint.objects, strict=True):
        contents = {key: entry(one) for key, one in description.entries}
        if isinstance(obj, Variable):
            (obj.value,) = contents.values()
            obj.set_metadata(note=len(made))
        elif isinstance(obj, Box):
            vars(obj).update(contents)
        elif isinstance(obj, list):
            obj.extend(contents.values())
        else:
            obj.update(contents)
    return tuple(entry(one) for one in blueprint.roots), made
