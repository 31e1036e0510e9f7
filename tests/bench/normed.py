"""The training step with momentum and a running mean in each layer.

State is written within remat, scan and value_and_grad, in a jit that donates it. Each weight has the shape of its
velocity, so that no buffer may end up with the wrong one: XLA would have to copy.
"""

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


def _at_rest(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


def _accelerated(velocity: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda v, gradient: 0.9 * v + gradient, velocity, gradients)


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

    def step(weights: Weights, means: Any, velocity: Weights, x: Any, y: Any) -> Any:
        count("step")
        (value, means), gradients = jax.value_and_grad(loss, has_aux=True)(weights, means, x, y)
        velocity = _accelerated(velocity, gradients)
        return descend(weights, velocity), means, velocity, value

    return jax.jit(step, donate_argnums=(0, 1, 2))


def _lifted(count: Count) -> Any:
    @lift.remat
    def layer(h: Any, one: Any) -> Any:
        count("layer")
        return one(h), None

    def loss(model: Any, x: Any, y: Any) -> jax.Array:
        count("loss")
        h, _ = lift.scan(layer, x @ model.embed, model.layers)
        return mean_square(h @ model.head - y)

    def step(model: Any, velocity: Any, x: Any, y: Any) -> Any:
        count("step")
        value, gradients = lift.value_and_grad(loss)(model, x, y)
        velocity = _accelerated(velocity, gradients)
        lift.update(model, descend(lift.state(model, "param"), velocity))
        return velocity, value

    return lift.jit(step, donate_argnums=(0, 1))


def _objects() -> tuple[Any, ...]:
    weights = arrays()
    model = Net(weights, _NormedLayer(weights.layers, _means()))
    return model, _at_rest(lift.state(model, "param")), *data()


WAYS: Mapping[str, Step] = {
    "by hand": Step(_by_hand, lambda: (arrays(), _means(), _at_rest(arrays()), *data())),
    "objects": Step(_lifted, _objects),
}
