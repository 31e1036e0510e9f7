"""A recurrent network: a scan with carried, scanned and broadcast arrays, of which the broadcast are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift
from liftcore import Carry
from tests.bench.steps import Count, Step, descend, mean_square, running

__all__ = ["WAYS"]

INPUTS, WIDTH, OUTPUTS, BATCH, TIME = 4, 16, 3, 8, 5


class _Weights(NamedTuple):
    into: Any
    again: Any
    head: Any


def _arrays() -> _Weights:
    into, again, head = jax.random.split(jax.random.key(1), 3)
    return _Weights(
        jax.random.normal(into, (INPUTS, WIDTH)),
        jax.random.normal(again, (WIDTH, WIDTH)) / WIDTH,
        jax.random.normal(head, (WIDTH, OUTPUTS)),
    )


def _mean() -> jax.Array:
    return jnp.zeros(WIDTH)


def _start() -> jax.Array:
    return jnp.zeros((BATCH, WIDTH))


def _data() -> tuple[jax.Array, jax.Array]:
    """Inputs with time as the second axis, and targets at each time as the first."""
    return jnp.ones((BATCH, TIME, INPUTS)), jnp.ones((TIME, BATCH, OUTPUTS))


def _next(h: Any, x: Any, into: Any, again: Any) -> Any:
    return jnp.tanh(x @ into + h @ again)


class _Cell(lift.Module):
    def __init__(self, weights: _Weights, mean: Any) -> None:
        self.into = lift.Param(weights.into)
        self.again = lift.Param(weights.again)
        self.head = lift.Param(weights.head)
        self.mean = lift.BatchStat(mean)

    def __call__(self, h: Any, x: Any) -> Any:
        h = _next(h, x, self.into.value, self.again.value)
        self.mean.value = running(self.mean.value, h)
        return h


class _EquinoxCell(eqx.Module):
    into: jax.Array
    again: jax.Array
    head: jax.Array

    def __call__(self, h: Any, x: Any) -> Any:
        return _next(h, x, self.into, self.again)


def _by_hand(count: Count) -> Any:
    def loss(weights: _Weights, mean: Any, xs: Any, ys: Any) -> Any:
        count("loss")

        def tick(carry: Any, x: Any) -> Any:
            count("tick")
            h, mean = carry
            h = _next(h, x, weights.into, weights.again)
            return (h, running(mean, h)), h

        (_, mean), hs = jax.lax.scan(tick, (_start(), mean), jnp.moveaxis(xs, 1, 0))
        return mean_square(hs @ weights.head - ys), mean

    @jax.jit
    def step(weights: _Weights, mean: Any, xs: Any, ys: Any) -> Any:
        count("step")
        (value, mean), gradients = jax.value_and_grad(loss, has_aux=True)(weights, mean, xs, ys)
        return descend(weights, gradients), mean, value

    return step


def _with_objects(count: Count) -> Any:
    cells = lift.StateAxes({"batch_stat": Carry, ...: None})

    def tick(cell: Any, h: Any, x: Any) -> Any:
        count("tick")
        h = cell(h, x)
        return h, h

    ticks = lift.scan(tick, in_axes=(cells, Carry, 1), out_axes=(Carry, 0))

    def loss(cell: Any, xs: Any, ys: Any) -> jax.Array:
        count("loss")
        _, hs = ticks(cell, _start(), xs)
        return mean_square(hs @ cell.head - ys)

    @lift.jit
    def step(cell: Any, xs: Any, ys: Any) -> Any:
        count("step")
        value, gradients = lift.value_and_grad(loss)(cell, xs, ys)
        lift.update(cell, descend(lift.state(cell, "param"), gradients))
        return value

    return step


def _with_equinox(count: Count) -> Any:
    def tick(cell: Any, carry: Any, x: Any) -> Any:
        count("tick")
        h, mean = carry
        h = cell(h, x)
        return (h, running(mean, h)), h

    ticks = lift.scan(tick, in_axes=(None, Carry, 1), out_axes=(Carry, 0))

    def loss(cell: Any, mean: Any, xs: Any, ys: Any) -> Any:
        count("loss")
        (_, mean), hs = ticks(cell, (_start(), mean), xs)
        return mean_square(hs @ cell.head - ys), mean

    @lift.jit
    def step(cell: Any, mean: Any, xs: Any, ys: Any) -> Any:
        count("step")
        (value, mean), gradients = lift.value_and_grad(loss, has_aux=True)(cell, mean, xs, ys)
        return lift.update(cell, descend(lift.state(cell, "param"), gradients)), mean, value

    return step


WAYS: Mapping[str, Step] = {
    "by hand": Step(_by_hand, lambda: (_arrays(), _mean(), *_data())),
    "objects": Step(_with_objects, lambda: (_Cell(_arrays(), _mean()), *_data())),
    "Equinox": Step(_with_equinox, lambda: (_EquinoxCell(*_arrays()), _mean(), *_data())),
}
