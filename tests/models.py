"""Small models that many tests share: the same computation in each family, and models with state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift

__all__ = [
    "FAMILIES",
    "Affine",
    "BatchNorm",
    "Config",
    "Counter",
    "Dropout",
    "EqxAffine",
    "Family",
    "Net",
    "assert_equal",
    "both_ways",
    "each_family",
    "leaves",
    "snapshot",
    "weights",
]


@dataclasses.dataclass(frozen=True)
class Config:
    """A config object: static, compared by value."""

    width: int = 3
    note: str = "config"


class Affine(lift.Module):
    """An own object with everything that is nobody's business: a function, a string and a config."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight = lift.Param(weight)
        self.bias = lift.Param(bias)
        self.act = jnp.tanh
        self.name = "affine"
        self.config = Config()

    def __call__(self, x: Any) -> Any:
        return self.act(x @ self.weight + self.bias)

    def decode(self, x: Any) -> Any:
        return self(x)


class EqxAffine(eqx.Module):
    """The same as an Equinox module."""

    weight: Any
    bias: Any
    act: Callable[[Any], Any]
    name: str
    config: Config = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.act(x @ self.weight + self.bias)

    def decode(self, x: Any) -> Any:
        return self(x)


class Counter(lift.Module):
    """Adds up what it is given."""

    def __init__(self, start: Any = 0.0) -> None:
        self.count = lift.BatchStat(jnp.asarray(start))

    def add(self, x: Any) -> Any:
        self.count.value = self.count.value + x
        return self.count.value


class BatchNorm(lift.Module):
    """A running mean; with an axis name it is the mean over that axis."""

    def __init__(self, axis_name: str | None = None) -> None:
        self.mean = lift.BatchStat(jnp.zeros(()))
        self.scale = lift.Param(jnp.ones(()))
        self.axis_name = axis_name

    def __call__(self, x: Any) -> Any:
        mean = x.mean() if self.axis_name is None else jax.lax.pmean(x.mean(), self.axis_name)
        self.mean.value = 0.5 * self.mean.value + 0.5 * mean
        return (x - mean) * self.scale


class Net(lift.Module):
    """A module with a submodule that has state, so that paths have more than one key."""

    def __init__(self) -> None:
        self.bn = BatchNorm()
        self.head = lift.Param(jnp.asarray(2.0))

    def __call__(self, x: Any) -> Any:
        return self.bn(x) * self.head


class Dropout(lift.Module):
    """Draws from a stream on every call."""

    def __init__(self, seed: int = 0) -> None:
        self.rngs = lift.Rngs(dropout=seed)

    def __call__(self, x: Any) -> Any:
        return x * jax.random.uniform(self.rngs.dropout(), jnp.shape(x))


@dataclasses.dataclass(frozen=True)
class Family:
    """How a family builds the affine model, calls it, and shows its arrays and those of its gradients."""

    name: str
    make: Callable[[Any, Any], Any]
    apply: Callable[[Any, Any], Any]
    arrays: Callable[[Any], tuple[Any, Any]]
    picked: Callable[[Any], tuple[Any, Any]]


def _call(model: Any, x: Any) -> Any:
    return model(x)


def _make_equinox(weight: Any, bias: Any) -> EqxAffine:
    return EqxAffine(weight, bias, jnp.tanh, "affine", Config())


def _make_tree(weight: Any, bias: Any) -> dict[str, Any]:
    return {"layer": [weight, bias], "act": jnp.tanh, "name": "affine", "config": Config()}


def _apply_tree(model: Mapping[str, Any], x: Any) -> Any:
    weight, bias = model["layer"]
    return model["act"](x @ weight + bias)


def _equinox_arrays(model: Any) -> tuple[Any, Any]:
    return model.weight, model.bias


def _tree_arrays(model: Any) -> tuple[Any, Any]:
    weight, bias = model["layer"]
    return weight, bias


FAMILIES = (
    Family(
        "objects",
        Affine,
        _call,
        lambda model: (model.weight.value, model.bias.value),
        lambda state: (state["weight"], state["bias"]),
    ),
    Family("equinox", _make_equinox, _call, _equinox_arrays, _equinox_arrays),
    Family("pytree", _make_tree, _apply_tree, _tree_arrays, _tree_arrays),
)

each_family = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])

#: The same program eagerly and compiled: `how(program)`.
both_ways = pytest.mark.parametrize("how", [lambda program: program, lift.jit], ids=["eager", "jit"])


def weights(seed: int = 0, size: int = 3, *, stack: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Some weight [*stack, size, size] and bias [*stack, size]."""
    one, other = jax.random.split(jax.random.key(seed))
    return jax.random.normal(one, (*stack, size, size)), jax.random.normal(other, (*stack, size))


def leaves(obj: Any) -> list[Any]:
    """All arrays of an object."""
    return jax.tree.leaves(lift.state(obj))


def snapshot(obj: Any) -> tuple[Any, list[Any]]:
    """What an object is now: its structure by value, and its very arrays."""
    structure, arrays = lift.split(obj)
    return structure, jax.tree.leaves(arrays)


def assert_equal(actual: Any, expected: Any) -> None:
    """Two trees of arrays have one structure, the same dtypes and, up to rounding, the same values."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(one) == jnp.result_type(other)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
