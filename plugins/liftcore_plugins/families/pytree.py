"""Plain pytrees: dicts, lists, dataclasses, whatever is registered with JAX. The family that all else falls back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.protocol import Family, FamilyCase

__all__ = ["case", "family"]


def _registered(cls: type) -> None:
    """No class is special: JAX's own registry takes each apart."""


def _make(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arrays)


def _apply(model: Mapping[str, Any], x: Any) -> jax.Array:
    return jnp.tanh(x @ model["kernel"] + model["bias"])


def _write(model: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {**model, **arrays}


family = Family(name="pytree", kind=_registered)
case = FamilyCase(make=_make, apply=_apply, arrays=_make, write=_write)
