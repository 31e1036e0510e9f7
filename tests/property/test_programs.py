"""Random programs on random object graphs: a lifted call does what plain Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

import liftcore as lift
from tests.property.graphs import Blueprint, build, check_alike
from tests.property.programs import READS, STRUCTURE, WRITES, Program, run
from tests.property.strategies import blueprints, examples, programs

#: Transforms that return what the function returns.
TRANSPARENT: dict[str, Callable[..., Any]] = {
    "jit": lift.jit,
    "remat": lift.remat,
    "jit of jit": lambda f: lift.jit(lift.jit(f)),
    "jit of remat": lambda f: lift.jit(lift.remat(f)),
    "remat of jit": lambda f: lift.remat(lift.jit(f)),
    "jit of a loss": lambda f: lift.jit(_through_loss(f)),
    "a loss": lambda f: _through_loss(f),
}


def _through_loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Any, roots: Any) -> Any:
        number, result = f(roots, x)
        return number, (number, result)

    return lambda roots, x: lift.value_and_grad(loss, has_aux=True)(x, roots)[0][1]


def compare(program: Program, blueprint: Blueprint, transform: Callable[..., Any], times: int = 1) -> None:
    """Calls a lifted program and the program itself on two copies of a graph."""
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    lifted = transform(lambda roots, x: run(program, roots, x))
    pairs = list(zip(made, twins, strict=True))
    for x in range(times):
        found = lifted(roots, jnp.float32(x))
        wanted = run(program, twin, jnp.float32(x))
        check_alike((roots, found), (twin, wanted), pairs)


@examples(200)
@given(blueprints(), programs((*READS, *WRITES, *STRUCTURE)), st.sampled_from(sorted(TRANSPARENT)))
def test_a_transparent_transform_does_what_plain_python_does(
    blueprint: Blueprint, program: Program, transform: str
) -> None:
    compare(program, blueprint, TRANSPARENT[transform])
