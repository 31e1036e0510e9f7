"""What stands in a random object graph, and what it means that two are alike.

Said once more, by hand: what has identity and what is a tree. Nothing here uses the core's own walk.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore_plugins.objects import BatchStat, Module, Param, Variable
from tests.property.graphs import Affine, Blueprint, Box, Pair, Point, build

__all__ = [
    "alike",
    "check_alike",
    "children",
    "close",
    "has_identity",
    "is_leaf",
    "leaves",
    "numbers",
    "objects",
    "tags",
]


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
    pairs: list[tuple[Any, Any]]
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
