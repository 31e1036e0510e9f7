"""What a function sees of a graph or tree, as arrays and text by path, and samples of what can stand in one."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import liftcore as lift

__all__ = ["Config", "Leaf", "Moments", "Name", "Net", "OtherNet", "assert_same", "contents", "report", "times"]


class Leaf(lift.Module):
    def __init__(self, value: float) -> None:
        self.w = lift.Param(jnp.full(2, value))
        self.n = 1
        self.name = "a"
        self.f = 0.0
        self.t = (1,)
        self.inner = ([1], 2)


class Name(enum.StrEnum):
    a = "a"


@dataclasses.dataclass
class Config:
    k: int = 1


class Moments(NamedTuple):
    """As optax keeps its state."""

    mu: Any
    nu: Any


class Net(eqx.Module):
    w: Any
    layers: list[Any]
    k: Any = eqx.field(static=True)


class OtherNet(Net):
    pass


def times(k: Any) -> Callable[[Any], Any]:
    return lambda x: x * k


def contents(obj: Any) -> list[tuple[str, Any]]:
    """What stands in a value, with its path from there."""
    match obj:
        case lift.Module():
            return [(f".{name}", child) for name, child in vars(obj).items()]
        case lift.Variable():
            return [(".value", obj.value)]
        case eqx.Module():
            return [(f".{field.name}", getattr(obj, field.name)) for field in dataclasses.fields(obj)]
        case list() | tuple():
            return [(f"[{index}]", child) for index, child in enumerate(obj)]
        case dict():
            return [(f"[{key!r}]", child) for key, child in obj.items()]
    return []


def report(tree: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """All arrays in a graph or tree and what its functions give, and all else as text, by path."""
    seen: dict[int, str] = {}
    arrays: dict[str, Any] = {}
    words: dict[str, str] = {}

    def go(obj: Any, path: str, leaf: bool) -> None:
        if isinstance(obj, (lift.Module, lift.Variable, list, dict)):
            if id(obj) in seen:
                words[path] = f"is {seen[id(obj)]}"
                return
            seen[id(obj)] = path
        below = contents(obj)
        if below or isinstance(obj, (lift.Module, lift.Variable, eqx.Module, list, tuple, dict)):
            more = dict(obj.metadata) if isinstance(obj, lift.Variable) else ""
            words[path] = f"{type(obj).__name__} {more} {', '.join(key for key, _ in below)}"
            for key, child in below:
                # A Python number is an array in an argument and in a variable, and static in a module.
                go(child, path + key, (leaf and not isinstance(obj, lift.Module)) or isinstance(obj, lift.Variable))
        elif hasattr(obj, "dtype") or (leaf and isinstance(obj, (bool, int, float))):
            arrays[path] = jnp.asarray(obj) * jnp.ones((), jnp.bfloat16)  # shows weak types as well
        elif isinstance(obj, (types.FunctionType, types.MethodType)):
            arrays[path] = jnp.asarray(obj(2.0))
        else:
            words[path] = f"{type(obj).__name__} {obj!r}"

    go(tree, "", True)
    return arrays, words


def assert_same(one: Any, other: Any) -> None:
    assert one[1] == other[1]
    assert list(one[1]) == list(other[1]), "in the same order"
    assert one[0].keys() == other[0].keys()
    for path, left in one[0].items():
        assert left.dtype == other[0][path].dtype
        np.testing.assert_array_equal(left, other[0][path])
