"""The training step with a running mean in each layer: state is written within remat, scan, grad and a donating jit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.steps import Count, Step, descend, mean_square, running
from tests.bench.training import LAYERS, WIDTH, Layer, LayerWeights, Net, Weights, affine, arrays, data

__all__ = ["WAYS"]


class _NormedLayer(Layer):
    def __init__(self, weights: LayerWeights, mean: Any) -> None:
        super().__init__(weights)
        self.mean = lift.BatchStat(mean)

    def __call__(self, h: Any) -> Any:
        h = super().__call__(h - self.mean.value)
        self.mean.value = running(self.mean.value, h)
        return h


def _means() -> jax.Array:
    return jnp.zeros((LAYERS, WIDTH))


def _by_hand(count: Count) -> Any:
    @jax.checkpoint
    def layer(h: Any, scanned: Any) -> Any:
        count("layer")
        weights, mean = scanned
        h = affine(h - mean, weights.kernel, weights.bias)
        return h, running(mean, h)

    def loss(weights: Weights, means: Any, x: Any, y: Any) -> Any:
        count("loss")
        h, means = jax.lax.scan(layer, x @ weights.embed, (weights.layers, means))
        return mean_square(h @ weights.head - y), means

    def step(weights: Weights, means: Any, x: Any, y: Any) -> Any:
        count("step")
        (value, means), gradients = jax.value_and_grad(loss, has_aux=True)(weights, means, x, y)
        return descend(weights, gradients), means, value

    return jax.jit(step, donate_argnums=(0, 1))


def _lifted(count: Count) -> Any:
    @lift.remat
    def layer(h: Any, one: Any) -> Any:
        count("layer")
        return one(h), None

    def loss(model: Any, x: Any, y: Any) -> jax.Array:
        count("loss")
        h, _ = lift.scan(layer, x @ model.embed, model.layers)
        return mean_square(h @ model.head - y)

    def step(model: Any, x: Any, y: Any) -> Any:
        count("step")
        value, gradients = lift.value_and_grad(loss)(model, x, y)
        lift.update(model, descend(lift.state(model, "param"), gradients))
        return value

    return lift.jit(step, donate_argnums=0)


def _objects() -> tuple[Any, ...]:
    weights = arrays()
    return (Net(weights, _NormedLayer(weights.layers, _means())), *data())


WAYS: Mapping[str, Step] = {
    "by hand": Step(_by_hand, lambda: (arrays(), _means(), *data())),
    "objects": Step(_lifted, _objects),
}
