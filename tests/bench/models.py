"""The same models as own objects and as Equinox modules, around the same arrays.

Both kinds read alike, so that one lifted step serves both; what a person would write by hand takes the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import liftcore as lift

__all__ = ["EquinoxCell", "EquinoxNet", "NormedNet", "ObjectCell", "ObjectNet", "affine", "arrays_of_cell", "arrays_of_net"]

INPUTS, WIDTH, OUTPUTS, LAYERS = 4, 16, 3, 6


def arrays_of_net() -> dict[str, Any]:
    """Weights of a residual network whose layers are stacked: kernels of shape (layers, width, width)."""
    embed, kernel, head = jax.random.split(jax.random.key(0), 3)
    return {
        "embed": jax.random.normal(embed, (INPUTS, WIDTH)),
        "layers": {
            "kernel": jax.random.normal(kernel, (LAYERS, WIDTH, WIDTH)) / WIDTH,
            "bias": jnp.zeros((LAYERS, WIDTH)),
        },
        "head": jax.random.normal(head, (WIDTH, OUTPUTS)),
    }


def arrays_of_cell() -> dict[str, Any]:
    """Weights of a recurrent cell and of what reads its last state."""
    into, again, out = jax.random.split(jax.random.key(1), 3)
    return {
        "into": jax.random.normal(into, (INPUTS, WIDTH)),
        "again": jax.random.normal(again, (WIDTH, WIDTH)) / WIDTH,
        "head": jax.random.normal(out, (WIDTH, OUTPUTS)),
    }


def affine(h: Any, kernel: Any, bias: Any) -> jax.Array:
    """One residual layer."""
    return h + jnp.tanh(h @ kernel + bias)


class _ObjectLayer(lift.Module):
    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.kernel = lift.Param(arrays["kernel"])
        self.bias = lift.Param(arrays["bias"])

    def __call__(self, h: Any) -> jax.Array:
        return affine(h, self.kernel, self.bias)


class ObjectNet(lift.Module):
    """The residual network as own objects."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.embed = lift.Param(arrays["embed"])
        self.layers = _ObjectLayer(arrays["layers"])
        self.head = lift.Param(arrays["head"])


class _NormedLayer(_ObjectLayer):
    def __init__(self, arrays: Mapping[str, Any], mean: Any) -> None:
        super().__init__(arrays)
        self.mean = lift.BatchStat(mean)

    def __call__(self, h: Any) -> jax.Array:
        h = super().__call__(h - self.mean)
        self.mean.value = running(self.mean.value, h)
        return h


class NormedNet(ObjectNet):
    """The residual network with a running mean in each layer: state that is written within all transforms."""

    def __init__(self, arrays: Mapping[str, Any], mean: Any) -> None:
        super().__init__(arrays)
        self.layers = _NormedLayer(arrays["layers"], mean)
