"""Own objects: modules are nodes with identity, variables are cells that report their reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.protocol import Family, FamilyCase, Node, Reference, Site
from liftcore_plugins.objects.module import NODE, Module
from liftcore_plugins.objects.variable import REFERENCE, Param, Variable, tags_of

__all__ = ["case", "family"]


def _kind(cls: type) -> Reference | Node | None:
    if issubclass(cls, Variable):
        return REFERENCE
    return NODE if issubclass(cls, Module) else None


def _tags(site: Site) -> frozenset[str]:
    return tags_of(site.reference)


class _Affine(Module, kw_only=True):
    kernel: Param
    bias: Param

    def __call__(self, x: Any) -> jax.Array:
        return jnp.asarray(x @ self.kernel.value + self.bias.value)


def _make(arrays: Mapping[str, Any]) -> _Affine:
    return _Affine(kernel=Param(arrays["kernel"]), bias=Param(arrays["bias"]))


def _apply(model: _Affine, x: Any) -> jax.Array:
    return model(x)


def _arrays(model: _Affine) -> Mapping[str, Any]:
    return {"kernel": model.kernel.value, "bias": model.bias.value}


def _write(model: _Affine, arrays: Mapping[str, Any]) -> _Affine:
    model.kernel.value, model.bias.value = arrays["kernel"], arrays["bias"]
    return model


family = Family(name="liftcore_plugins", kind=_kind, tags=_tags)
case = FamilyCase(make=_make, apply=_apply, arrays=_arrays, write=_write)
