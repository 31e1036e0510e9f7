"""Gradients of random programs on random object graphs, against `jax.grad` of the same on the flattened arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import liftcore as lift
from liftcore.errors import AliasError, GradError
from tests.property.graphs import Blueprint, Leaf, array, build
from tests.property.likeness import check_alike, leaves, numbers, objects, tags
from tests.property.programs import READS, STRUCTURE, WRITES, Program, read, run, write
from tests.property.strategies import blueprints, examples, programs

STEPS = (read, *WRITES, *READS, *STRUCTURE)
TRANSFORMS: dict[str, Callable[..., Callable[..., Any]]] = {
    "grad": lift.grad,
    "jit of grad": lambda f, argnums: lift.jit(lift.grad(f, argnums)),
    "grad of jit": lambda f, argnums: lift.grad(lift.jit(f), argnums),
    "grad of remat": lambda f, argnums: lift.grad(lift.remat(f), argnums),
}


def is_inexact(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def parameters(roots: Any) -> list[bool]:
    """For each leaf, whether it is differentiated: a floating-point number with the tag "param"."""
    return ["param" in tags(value, obj, owners) and is_inexact(value) for value, obj, owners in leaves(roots)]


def flattened(blueprint: Blueprint, program: Program) -> Callable[..., Any]:
    """The loss as a function of arrays by number."""

    def loss(some: dict[int, Any], rest: dict[int, Any], x: Any) -> Any:
        every = {**some, **rest}
        roots, _ = build(blueprint, lambda number, _: every[number])
        return run(program, roots, x)[0]

    return loss


@examples(60)
@given(blueprints(), programs(STEPS), st.sampled_from(sorted(TRANSFORMS)))
def test_gradients_of_everything_are_those_of_jax(blueprint: Blueprint, program: Program, transform: str) -> None:
    values: dict[int, Any] = {}

    def value(number: int, leaf: Leaf) -> Any:
        values[number] = array(leaf)
        return values[number]

    (roots, made), (twin, twins) = build(blueprint, value), build(blueprint)
    chosen = [number for number, wanted in zip(numbers(blueprint), parameters(roots), strict=True) if wanted]
    x = jnp.float32(2)
    lifted = TRANSFORMS[transform](lambda *roots: run(program, roots[:-1], roots[-1])[0], tuple(range(len(roots))))
    if not chosen:
        with pytest.raises(GradError):
            lifted(*roots, x)
        return
    rest = {number: leaf for number, leaf in values.items() if number not in chosen}
    wanted = jax.grad(flattened(blueprint, program))({number: values[number] for number in chosen}, rest, x)
    gradients = lifted(*roots, x)
    # What the program wrote is kept; a second graph, updated with the gradients, shows where each of them lies.
    run(program, twin, x)
    check_alike(roots, twin, list(zip(made, twins, strict=True)))
    found = tuple(map(lift.update, build(blueprint)[0], gradients))
    check_alike(found, build(blueprint, lambda number, leaf: wanted.get(number, array(leaf)))[0])
    assert len(jax.tree.leaves(gradients)) == len(chosen)


@examples(40)
@given(blueprints(), programs(STEPS), st.data())
def test_arguments_that_are_not_differentiated_share_nothing_with_those_that_are(
    blueprint: Blueprint, program: Program, data: st.DataObject
) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    argnum = data.draw(st.integers(0, len(roots) - 1))
    differentiated = {id(obj) for obj in objects(roots[argnum])}
    others = {id(obj) for obj in objects([root for number, root in enumerate(roots) if number != argnum])}
    shared = any(
        parameter and id(obj) in differentiated & others
        for (_, obj, _), parameter in zip(leaves(roots), parameters(roots), strict=True)
    )
    assume(any(parameters([roots[argnum]])))
    x = jnp.float32(2)
    lifted = lift.grad(lambda *roots: run(program, roots[:-1], roots[-1])[0], argnum)
    if shared:
        with pytest.raises(AliasError):
            lifted(*roots, x)
    else:
        lifted(*roots, x)
        run(program, twin, x)
    check_alike(roots, twin, list(zip(made, twins, strict=True)))


@examples(20)
@given(blueprints(forms=("float", "float", "int", "numpy")), programs((write, read), results=("nothing",)))
def test_a_lifted_step_descends_as_a_plain_one(blueprint: Blueprint, program: Program) -> None:
    """State, gradient and update together: the loop that people write."""
    values = {}

    def value(number: int, leaf: Leaf) -> Any:
        values[number] = array(leaf)
        return values[number]

    roots, made = build(blueprint, value)
    chosen = [number for number, wanted in zip(numbers(blueprint), parameters(roots), strict=True) if wanted]
    assume(chosen)

    @lift.jit
    def step(roots: Any, x: Any) -> Any:
        gradients = lift.grad(lambda roots: run(program, roots, x)[0])(roots)
        state = lift.state(roots, lift.All("param", is_inexact))
        return lift.update(roots, jax.tree.map(lambda leaf, gradient: leaf - 0.5 * gradient, state, gradients))

    order = numbers(blueprint)

    def plain(arrays: dict[int, Any], x: Any) -> Any:
        def loss(some: dict[int, Any]) -> Any:
            roots, _ = build(blueprint, lambda number, _: {**arrays, **some}[number])
            number, _ = run(program, roots, x)
            return number, dict(zip(order, (leaf for leaf, _, _ in leaves(roots)), strict=True))

        gradients, after = jax.grad(loss, has_aux=True)({number: arrays[number] for number in chosen})
        return {**after, **{number: after[number] - 0.5 * gradients[number] for number in chosen}}

    arrays = dict(values)
    for number in range(2):
        x = jnp.float32(number)
        after = step(roots, x)
        arrays = plain(arrays, x)
        twin, twins = build(blueprint, lambda number, _, arrays=arrays: arrays[number])
        check_alike(roots[0], twin[0], list(zip(made, twins, strict=True)))
        roots = after
        check_alike(roots, twin, list(zip(made, twins, strict=True)), close_enough)


def close_enough(found: Any, wanted: Any) -> bool:
    return np.allclose(found, wanted, rtol=1e-4, atol=1e-4)
