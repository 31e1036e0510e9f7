"""A training step: gradient descent on a loss over a scan of rematerialised layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.steps import Count, Step, descend, mean_square

__all__ = [
    "EQUINOX_ALONE",
    "LAYERS",
    "WAYS",
    "WIDTH",
    "Layer",
    "LayerWeights",
    "Net",
    "Weights",
    "affine",
    "arrays",
    "data",
]

INPUTS, WIDTH, OUTPUTS, LAYERS, BATCH = 4, 16, 3, 6, 8


class LayerWeights(NamedTuple):
    """Arrays of a layer, or of stacked layers."""

    kernel: Any
    bias: Any


class Weights(NamedTuple):
    """Arrays of a residual network."""

    embed: Any
    layers: LayerWeights
    head: Any


def arrays() -> Weights:
    """Weights of a residual network; those of its layers are stacked."""
    embed, kernel, head = jax.random.split(jax.random.key(0), 3)
    kernels = jax.random.normal(kernel, (LAYERS, WIDTH, WIDTH)) / WIDTH
    return Weights(
        jax.random.normal(embed, (INPUTS, WIDTH)),
        LayerWeights(kernels, jnp.zeros((LAYERS, WIDTH))),
        jax.random.normal(head, (WIDTH, OUTPUTS)),
    )


def data() -> tuple[jax.Array, jax.Array]:
    """A batch of inputs and targets."""
    return jnp.ones((BATCH, INPUTS)), jnp.ones((BATCH, OUTPUTS))


def affine(h: Any, kernel: Any, bias: Any) -> Any:
    """One residual layer."""
    return h + jnp.tanh(h @ kernel + bias)


class Layer(lift.Module):
    """A layer as an own object."""

    def __init__(self, weights: LayerWeights) -> None:
        self.kernel = lift.Param(weights.kernel)
        self.bias = lift.Param(weights.bias)

    def __call__(self, h: Any) -> Any:
        return affine(h, self.kernel.value, self.bias.value)


class Net(lift.Module):
    """The network as own objects, around the given layers."""

    def __init__(self, weights: Weights, layers: Layer) -> None:
        self.embed = lift.Param(weights.embed)
        self.layers = layers
        self.head = lift.Param(weights.head)


class _EquinoxLayer(eqx.Module):
    kernel: jax.Array
    bias: jax.Array

    def __call__(self, h: Any) -> Any:
        return affine(h, self.kernel, self.bias)


class _EquinoxNet(eqx.Module):
    embed: jax.Array
    layers: _EquinoxLayer
    head: jax.Array


def _by_hand(count: Count) -> Any:
    @jax.checkpoint
    def layer(h: Any, weights: LayerWeights) -> Any:
        count("layer")
        return affine(h, weights.kernel, weights.bias), None

    def loss(weights: Weights, x: Any, y: Any) -> jax.Array:
        count("loss")
        h, _ = jax.lax.scan(layer, x @ weights.embed, weights.layers)
        return mean_square(h @ weights.head - y)

    @jax.jit
    def step(weights: Weights, x: Any, y: Any) -> Any:
        count("step")
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return descend(weights, gradients), value

    return step


def _lifted(count: Count) -> Any:
    @lift.remat
    def layer(h: Any, one: Any) -> Any:
        count("layer")
        return one(h), None

    def loss(model: Any, x: Any, y: Any) -> jax.Array:
        count("loss")
        h, _ = lift.scan(layer, x @ model.embed, model.layers)
        return mean_square(h @ model.head - y)

    @lift.jit
    def step(model: Any, x: Any, y: Any) -> Any:
        count("step")
        value, gradients = lift.value_and_grad(loss)(model, x, y)
        return lift.update(model, descend(lift.state(model, "param"), gradients)), value

    return step


def _with_equinox_alone(count: Count) -> Any:
    def loss(model: Any, x: Any, y: Any) -> jax.Array:
        dynamic, static = eqx.partition(model.layers, eqx.is_array)

        @eqx.filter_checkpoint
        def layer(h: Any, one: Any) -> Any:
            count("layer")
            return eqx.combine(one, static)(h), None

        count("loss")
        h, _ = jax.lax.scan(layer, x @ model.embed, dynamic)
        return mean_square(h @ model.head - y)

    @eqx.filter_jit
    def step(model: Any, x: Any, y: Any) -> Any:
        count("step")
        value, gradients = eqx.filter_value_and_grad(loss)(model, x, y)
        return eqx.apply_updates(model, jax.tree.map(lambda gradient: -0.1 * gradient, gradients)), value

    return step


def _objects() -> tuple[Any, ...]:
    weights = arrays()
    return (Net(weights, Layer(weights.layers)), *data())


def _equinox() -> tuple[Any, ...]:
    weights = arrays()
    return (_EquinoxNet(weights.embed, _EquinoxLayer(*weights.layers), weights.head), *data())


WAYS: Mapping[str, Step] = {
    "by hand": Step(_by_hand, lambda: (arrays(), *data())),
    "objects": Step(_lifted, _objects),
    "Equinox": Step(_lifted, _equinox),
}

EQUINOX_ALONE = Step(_with_equinox_alone, _equinox)
