"""Host time of transforms that are called eagerly: a body of one operation for each variable of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import liftcore as lift
from tests.bench.blocks import Model, arrays
from tests.bench.rounds import Contender, Limits, calling, threading
from tests.bench.table import Table
from tests.bench.timed import MICROSECONDS, timed

__all__ = ["TRANSFORMS", "table"]

VARIABLES = 100

#: Steps of the scan.
LENGTH = 3

FLAT, OBJECTS = "jax, flat list", "lift, objects"


def _product(leaves: Iterable[Any], x: Any) -> Any:
    for leaf in leaves:
        x = x * leaf
    return x


def _of_list(leaves: list[Any], x: Any) -> Any:
    return _product(leaves, x)


def _of_objects(model: Model, x: Any) -> Any:
    return _product((cell.value for cell in model.cells()), x)


def _calling(
    flat: Callable[[list[Any], Any], Any], objects: Callable[[Model, Any], Any], variables: int
) -> dict[str, Contender]:
    leaves, x = arrays(variables), jnp.full(4, -1.0)
    return {
        FLAT: calling(lambda model: flat(model, x), leaves),
        OBJECTS: calling(lambda model: objects(model, x), Model(leaves)),
    }


def _vmap(variables: int) -> dict[str, Contender]:
    """The model and x have one axis, which is mapped."""
    return _calling(jax.vmap(_of_list), lift.vmap(_of_objects), variables)


def _grad(variables: int) -> dict[str, Contender]:
    """The gradient of the first variable, which is the last to be there, is waited for."""

    def loss(product: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda model, x: product(model, x).sum()

    flat, objects = jax.grad(loss(_of_list)), lift.grad(loss(_of_objects))
    return _calling(
        lambda leaves, x: flat(leaves, x)[0],
        lambda model, x: objects(model, x)["blocks"][0]["kernel"],
        variables,
    )


def _scan(variables: int) -> dict[str, Contender]:
    """Every variable is carried and written in each step, and the next call starts with it."""

    def of_list(carry: Any, _: None) -> Any:
        leaves, x = carry
        return ([leaf * x for leaf in leaves], x), None

    def of_objects(carry: Any, _: None) -> Any:
        model, x = carry
        for cell in model.cells():
            cell.value = cell.value * x
        return carry, None

    def flat(carry: Any) -> Any:
        return jax.lax.scan(of_list, carry, None, length=LENGTH)[0]

    lifted = lift.scan(of_objects, length=LENGTH)

    def objects(carry: Any) -> Any:
        return lifted(carry, None)[0]

    # An odd number of steps changes every sign, and nothing else, however many calls are made.
    leaves, x = arrays(variables), jnp.full(4, -1.0)
    return {
        FLAT: threading(flat, (leaves, x), lambda carry: carry[0][0]),
        OBJECTS: threading(objects, (Model(leaves), x), lambda carry: carry[0].blocks[0].kernel.value),
    }


def _remat(variables: int) -> dict[str, Contender]:
    return _calling(jax.checkpoint(_of_list), lift.remat(_of_objects), variables)


#: What makes the contenders for each transform, given the number of variables. The first is flat.
TRANSFORMS: Mapping[str, Callable[[int], dict[str, Contender]]] = {
    "vmap": _vmap,
    "grad": _grad,
    "scan": _scan,
    "remat": _remat,
}


def table(limits: Limits, variables: int = VARIABLES) -> Table:
    """Times of all transforms."""
    rows = {f"{name}, {variables} variables": functools.partial(make, variables) for name, make in TRANSFORMS.items()}
    return timed("Eager", rows, limits, MICROSECONDS)
