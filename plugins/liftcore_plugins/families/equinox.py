"""Equinox: every `eqx.Module` is an immutable tree whose fields are its children.

Bound methods, `eqx.Partial` and what `eqx.filter_jit` returns are modules too. `eqx.nn.State` is none: JAX's registry
takes it apart. `filter_spec` trees, `eqx.is_array` and `eqx.if_array` need nothing from here, since filters and
prefixes take trees and callables from everywhere. Nor do containers of states and gradients: a tree keeps its shape,
its static fields and None for all else, which is what `eqx.partition` gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from liftcore.protocol import Family, FamilyCase, Node, Site, inexact_is_param

__all__ = ["case", "family"]


def _kind(cls: type) -> Node | None:
    if not issubclass(cls, eqx.Module):
        return None
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    known = frozenset(names)
    traced = frozenset(field.name for field in fields if not field.metadata.get("static", False))

    def items(module: eqx.Module) -> Mapping[str, Any]:
        contents = vars(module)
        if tuple(contents) == names:
            return contents
        if contents.keys() <= known:
            # In the order of the fields: two equal modules may have set their attributes in different orders.
            return {name: contents[name] for name in names if name in contents}
        return _as_equinox_keeps_it(module)

    def static(module: eqx.Module) -> frozenset[Hashable]:
        return (known if vars(module).keys() <= known else frozenset(items(module))) - traced

    return Node(items=items, make=object.__new__, fill=_fill, static=static, identity=False)


def _tags(site: Site) -> frozenset[str]:
    # Running statistics are floating-point arrays too, and no parameters.
    stateful = any(issubclass(owner, (eqx.nn.State, eqx.nn.StateIndex)) for owner in site.owners)
    return frozenset(("state",)) if stateful else inexact_is_param(site)


def _as_equinox_keeps_it(module: eqx.Module) -> Mapping[str, Any]:
    """What is left of attributes that are no fields.

    Equinox keeps what a module takes over from a function that it wraps, such as its name, and drops the rest: a cached
    property has to be computed anew from the new leaves. It also marks that there was something to drop, and only a
    module with the same mark has the same treedef.
    """
    children, treedef = jax.tree_util.tree_flatten(module, is_leaf=lambda other: other is not module)
    kept: eqx.Module = jax.tree_util.tree_unflatten(treedef, children)
    return vars(kept)


def _fill(module: eqx.Module, contents: Mapping[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(contents)


class _Affine(eqx.Module):
    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array]
    name: str = eqx.field(static=True)

    def __call__(self, x: Any) -> jax.Array:
        return self.activation(x @ self.kernel + self.bias)


def _make(arrays: Mapping[str, Any]) -> _Affine:
    return _Affine(arrays["kernel"], arrays["bias"], jnp.tanh, "affine")


def _apply(model: _Affine, x: Any) -> jax.Array:
    return model(x)


def _arrays(model: _Affine) -> Mapping[str, Any]:
    return {"kernel": model.kernel, "bias": model.bias}


def _write(model: _Affine, arrays: Mapping[str, Any]) -> _Affine:
    return dataclasses.replace(model, **arrays)


family = Family(name="equinox", kind=_kind, tags=_tags)
case = FamilyCase(make=_make, apply=_apply, arrays=_arrays, write=_write)
