"""An ensemble: a training step of all members at once, each with its own weights, all with one running mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.steps import Count, Step, descend, mean_square, running

__all__ = ["WAYS"]

INPUTS, WIDTH, OUTPUTS, BATCH, MEMBERS = 4, 16, 3, 8, 5

#: The members' axis is the last of the head, and the first of the rest.
AXES = lift.StateAxes([(lift.PathContains("head"), -1), ("param", 0), (..., None)])


class _Weights(NamedTuple):
    kernel: Any
    head: Any


def _arrays() -> _Weights:
    kernel, head = jax.random.split(jax.random.key(2))
    return _Weights(
        jax.random.normal(kernel, (MEMBERS, INPUTS, WIDTH)),
        jax.random.normal(head, (WIDTH, OUTPUTS, MEMBERS)),
    )


def _mean() -> jax.Array:
    return jnp.zeros(WIDTH)


def _data() -> tuple[jax.Array, jax.Array]:
    return jnp.ones((BATCH, INPUTS)), jnp.ones((BATCH, OUTPUTS))


def _together(mean: Any, h: Any) -> Any:
    return jax.lax.pmean(running(mean, h), "members")  # type: ignore[no-untyped-call]


class _Member(lift.Module):
    def __init__(self, weights: _Weights, mean: Any) -> None:
        self.kernel = lift.Param(weights.kernel)
        self.head = lift.Param(weights.head)
        self.mean = lift.BatchStat(mean)

    def __call__(self, x: Any) -> Any:
        h = jnp.tanh(x @ self.kernel - self.mean)
        self.mean.value = _together(self.mean.value, h)
        return h @ self.head


class _EquinoxMember(eqx.Module):
    kernel: jax.Array
    head: jax.Array

    def __call__(self, x: Any, mean: Any) -> Any:
        h = jnp.tanh(x @ self.kernel - mean)
        return h @ self.head, _together(mean, h)


def _by_hand(count: Count) -> Any:
    def loss(weights: _Weights, mean: Any, x: Any, y: Any) -> Any:
        count("loss")
        h = jnp.tanh(x @ weights.kernel - mean)
        return mean_square(h @ weights.head - y), _together(mean, h)

    def member(weights: _Weights, mean: Any, x: Any, y: Any) -> Any:
        count("member")
        (value, mean), gradients = jax.value_and_grad(loss, has_aux=True)(weights, mean, x, y)
        return descend(weights, gradients), mean, value

    axes = _Weights(0, -1)
    return jax.jit(jax.vmap(member, (axes, None, None, None), (axes, None, 0), axis_name="members"))


def _with_objects(count: Count) -> Any:
    def loss(model: Any, x: Any, y: Any) -> jax.Array:
        count("loss")
        return mean_square(model(x) - y)

    def member(model: Any, x: Any, y: Any) -> Any:
        count("member")
        value, gradients = lift.value_and_grad(loss)(model, x, y)
        lift.update(model, descend(lift.state(model, "param"), gradients))
        return value

    return lift.jit(lift.vmap(member, (AXES, None, None), axis_name="members"))


def _with_equinox(count: Count) -> Any:
    def loss(model: Any, mean: Any, x: Any, y: Any) -> Any:
        count("loss")
        out, mean = model(x, mean)
        return mean_square(out - y), mean

    def member(model: Any, mean: Any, x: Any, y: Any) -> Any:
        count("member")
        (value, mean), gradients = lift.value_and_grad(loss, has_aux=True)(model, mean, x, y)
        return lift.update(model, descend(lift.state(model, "param"), gradients)), mean, value

    return lift.jit(lift.vmap(member, (AXES, None, None, None), (AXES, None, 0), axis_name="members"))


WAYS: Mapping[str, Step] = {
    "by hand": Step(_by_hand, lambda: (_arrays(), _mean(), *_data())),
    "objects": Step(_with_objects, lambda: (_Member(_arrays(), _mean()), *_data())),
    "Equinox": Step(_with_equinox, lambda: (_EquinoxMember(*_arrays()), _mean(), *_data())),
}
