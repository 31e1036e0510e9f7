"""Random object graphs, as data; how to build one; and what it means that two are alike.

A `Blueprint` is immutable, so that one graph can be built any number of times, around any arrays, with the objects of
all copies in one order. Traversal and comparison say once more, by hand, what the lift takes for an object with
identity and what for a tree: nothing here uses the core's own walk.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
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
    "Tree",
    "alike",
    "build",
    "check_alike",
    "children",
    "has_identity",
    "is_leaf",
    "leaves",
    "numbers",
    "objects",
    "tags",
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


def has_identity(value: Any, mode: str) -> bool:
    """Whether a value is an object; a list or dict is one below a module only."""
    return isinstance(value, (Module, Variable)) or (mode == "object" and type(value) in (list, dict))


def _sorted(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict that is a tree: by key, as JAX has them, if that can be."""
    try:
        return sorted(mapping.items(), key=lambda pair: pair[0])
    except TypeError:
        return list(mapping.items())


def children(value: Any, mode: str) -> list[tuple[Any, Any, str]] | None:
    """What stands in a value: (key, child, mode); None for arrays and static values."""
    below = mode
    match value:
        case Module():
            pairs, below = list(vars(value).items()), "object"
        case Variable():
            pairs, below = [(None, value.value)], "argument"
        case Point():
            pairs, below = list(value._asdict().items()), "argument" if mode == "argument" else "tree"
        case tuple() | list():
            pairs = list(enumerate(value))
        case dict():
            pairs = list(value.items()) if mode == "object" else _sorted(value)
        case Affine():
            pairs, below = [("kernel", value.kernel), ("rest", value.rest)], "tree"
        case Pair():
            pairs, below = (
                [("first", value.first), ("second", value.second)],
                "argument" if mode == "argument" else "tree",
            )
        case functools.partial():
            pairs, below = list(enumerate(value.args)), "tree"
        case types.MethodType():
            pairs = [("__self__", value.__self__)]
        case types.FunctionType() if value.__closure__:
            pairs, below = [(0, value.__closure__[0].cell_contents)], "tree"
        case _:
            return None
    return [(key, child, below) for key, child in pairs]


def objects(roots: Any) -> list[Any]:
    """All objects, in the order of a depth-first search."""
    found: dict[int, Any] = {}
    pending = [(roots, "argument")]
    while pending:
        value, mode = pending.pop()
        if has_identity(value, mode):
            if id(value) in found:
                continue
            found[id(value)] = value
        pending += [(child, below) for _, child, below in reversed(children(value, mode) or [])]
    return list(found.values())


def is_leaf(value: Any, mode: str) -> bool:
    """Whether a value is a leaf: Python numbers are in arguments and variables only."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) or (
        mode == "argument" and isinstance(value, (bool, int, float))
    )


def leaves(roots: Any) -> list[tuple[Any, Any, tuple[type, ...]]]:
    """All leaves, those of an object once: each with the object that holds it, if any, and the modules around it."""
    found: list[tuple[Any, Any, tuple[type, ...]]] = []
    passed: dict[int, Any] = {}
    pending: list[tuple[Any, str, Any, tuple[type, ...]]] = [(roots, "argument", None, ())]
    while pending:
        value, mode, obj, owners = pending.pop()
        if has_identity(value, mode):
            if id(value) in passed:
                continue
            obj = passed[id(value)] = value
        if is_leaf(value, mode):
            found.append((value, obj, owners))
        inside = (*owners, type(value)) if isinstance(value, (Box, Affine)) else owners
        pending += [(child, below, obj, inside) for _, child, below in reversed(children(value, mode) or [])]
    return found


def tags(value: Any, obj: Any, owners: tuple[type, ...]) -> frozenset[str]:
    """The words for a leaf: a variable's kind; of a tree, "param" for floating-point numbers; none in a module."""
    if isinstance(obj, Variable):
        words = {Param: "param", BatchStat: "batch_stat"}
        return frozenset(word for kind, word in words.items() if isinstance(obj, kind))
    nearest = next((owner for owner in reversed(owners) if owner in (Affine, Box)), None)
    inexact = jnp.issubdtype(jnp.result_type(value), jnp.inexact)
    return frozenset(["param"] if nearest is not Box and inexact else [])


def numbers(blueprint: Blueprint) -> list[int]:
    """For each of the graph's `leaves`, the number by which `build` asks for it."""
    return [int(leaf) for leaf, _, _ in leaves(build(blueprint, lambda number, _: np.float32(number))[0])]


def close(found: Any, wanted: Any) -> bool:
    """Whether two leaves are equal: a Python number equals an array of its value."""
    if not any(isinstance(leaf, (bool, int, float)) for leaf in (found, wanted)) and found.dtype != wanted.dtype:
        return False
    return np.shape(found) == np.shape(wanted) and np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def _header(value: Any) -> Iterator[Any]:
    """What two objects or trees must have in common besides what stands in them."""
    yield type(value)
    match value:
        case Variable():
            yield dict(value.metadata)
        case Affine():
            yield value.name
        case functools.partial():
            yield value.func, value.keywords
        case types.MethodType():
            yield value.__func__
        case types.FunctionType():
            yield value.__code__


def check_alike(
    found: Any,
    wanted: Any,
    pairs: Sequence[tuple[Any, Any]] = (),
    same: Callable[[Any, Any], bool] = close,
) -> None:
    """Checks that two graphs are isomorphic: sharing, contents and their order, static values, arrays.

    Args:
      found: the arguments, or whatever leads to the graph.
      wanted: the other graph.
      pairs: objects of both that must correspond: identity is kept where this holds all objects from before.
      same: compares two leaves.
    """
    ahead = {id(one): other for one, other in pairs}
    back = {id(other): one for one, other in pairs}
    kept = list(pairs)  # ids stay taken
    done: set[int] = set()
    pending = [(one, other, "object", f"object {number}") for number, (one, other) in enumerate(pairs)]
    pending += [(found, wanted, "argument", "root")]
    while pending:
        one, other, mode, path = pending.pop()
        if has_identity(one, mode) or has_identity(other, mode):
            if id(one) not in ahead and id(other) not in back:
                ahead[id(one)], back[id(other)] = other, one
                kept.append((one, other))
            assert ahead.get(id(one)) is other, f"{path}: found {one!r}, which is another object than {other!r}"
            assert back.get(id(other)) is one, f"{path}: {other!r} is also another object than {one!r}"
            if id(one) in done:
                continue
            done.add(id(one))
        if is_leaf(one, mode) and is_leaf(other, mode):
            assert same(one, other), f"{path}: found {one!r}, wanted {other!r}"
            continue
        mine, theirs = children(one, mode), children(other, mode)
        if mine is None or theirs is None:
            equal = type(one) is type(other) and one == other and repr(one) == repr(other)
            assert one is other or equal, f"{path}: found {one!r}, wanted {other!r}"
            continue
        assert list(_header(one)) == list(_header(other)), f"{path}: found {one!r}, wanted {other!r}"
        assert [key for key, _, _ in mine] == [key for key, _, _ in theirs], f"{path}: {one!r} lacks parts of {other!r}"
        pending += [
            (child, twin, below, f"{path}.{key}")
            for (key, child, below), (_, twin, _) in zip(mine, theirs, strict=True)
        ]


def alike(found: Any, wanted: Any, same: Callable[[Any, Any], bool] = operator.is_) -> bool:
    """Whether two graphs are isomorphic; by default with the very same arrays."""
    try:
        check_alike(found, wanted, same=same)
    except AssertionError:
        return False
    return True
