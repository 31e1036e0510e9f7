"""Random programs on random object graphs: a lifted call does what plain Python does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import liftcore as lift
from tests.property.graphs import Blueprint, build
from tests.property.likeness import alike, check_alike
from tests.property.programs import READS, RESULTS, STRUCTURE, WRITES, Program, call, run, take, write
from tests.property.strategies import blueprints, examples, programs

STEPS = (*WRITES, *READS, *STRUCTURE)
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


def _through_loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Any, *roots: Any) -> Any:
        number, result = f(x, *roots)
        return number, (number, result)

    return lambda x, *roots: lift.value_and_grad(loss, has_aux=True)(x, *roots)[0][1]


#: Transforms that return what the function returns.
TRANSPARENT: dict[str, Transform] = {
    "jit": lift.jit,
    "remat": lift.remat,
    "jit of jit": lambda f: lift.jit(lift.jit(f)),
    "jit of remat": lambda f: lift.jit(lift.remat(f)),
    "remat of jit": lambda f: lift.remat(lift.jit(f)),
    "a loss": _through_loss,
    "jit of a loss": lambda f: lift.jit(_through_loss(f)),
}


def of(program: Program) -> Callable[..., Any]:
    return lambda x, *roots: run(program, roots, x)


@examples(80)
@given(blueprints(), programs(STEPS), st.sampled_from(sorted(TRANSPARENT)))
def test_transparent_transforms_do_what_plain_python_does(
    blueprint: Blueprint, program: Program, transform: str
) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    found = TRANSPARENT[transform](of(program))(jnp.float32(1), *roots)
    wanted = run(program, twin, jnp.float32(1))
    check_alike((roots, found), (twin, wanted), list(zip(made, twins, strict=True)))


@examples(50)
@given(
    blueprints(),
    programs((call, *STEPS, call, call)),
    st.sampled_from(["nothing", *TRANSPARENT]),
    st.sampled_from(["jit", "remat", "a loss"]),
)
def test_a_lifted_call_inside_does_what_a_plain_call_does(
    blueprint: Blueprint, program: Program, outer: str, inner: str
) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)

    def within(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda box, x: TRANSPARENT[inner](lambda x, box: f(box, x))(x, box)

    transform = TRANSPARENT.get(outer, lambda f: f)
    found = transform(lambda x, *roots: run(program, roots, x, within))(jnp.float32(1), *roots)
    wanted = run(program, twin, jnp.float32(1))
    check_alike((roots, found), (twin, wanted), list(zip(made, twins, strict=True)))


@examples(40)
@given(blueprints(), programs(STEPS))
def test_donation_leaves_valid_objects(blueprint: Blueprint, program: Program) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    donated = tuple(range(1, len(roots) + 1))
    with warnings.catch_warnings():
        # JAX's own: there need be no output with the shape of a donated array.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        found = lift.jit(of(program), donate_argnums=donated)(jnp.float32(1), *roots)
    wanted = run(program, twin, jnp.float32(1))
    # Trees among the arguments are gone, as in JAX; what has identity is not.
    check_alike((roots[0], found), (twin[0], wanted), list(zip(made, twins, strict=True)))


@examples(40)
@given(blueprints(), programs(STEPS, most=3), st.lists(programs(STEPS, most=2), min_size=2, max_size=3))
def test_a_graph_that_changes_between_calls_meets_no_stale_program(
    blueprint: Blueprint, program: Program, between: list[Program]
) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    pairs = list(zip(made, twins, strict=True))
    lifted = lift.jit(of(program))
    for number, change in enumerate(between):
        x = jnp.float32(number)
        check_alike((roots, lifted(x, *roots)), (twin, run(program, twin, x)), pairs)
        check_alike(run(change, roots, x), run(change, twin, x), pairs)
    check_alike((roots, lifted(x, *roots)), (twin, run(program, twin, x)), pairs)


@examples(30)
@given(blueprints(), st.lists(programs(STEPS, most=3), min_size=2, max_size=3), st.data())
def test_copies_of_a_graph_share_programs_and_nothing_else(
    blueprint: Blueprint, several: list[Program], data: st.DataObject
) -> None:
    graphs = [(build(blueprint, origin=number), build(blueprint, origin=number)) for number in range(2)]
    lifted = [lift.jit(of(program)) for program in several]
    for _ in range(4):
        which, number = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(several) - 1))
        (roots, made), (twin, twins) = graphs[which]
        found = lifted[number](jnp.float32(1), *roots)
        wanted = run(several[number], twin, jnp.float32(1))
        check_alike((roots, found), (twin, wanted), list(zip(made, twins, strict=True)))
    for (roots, made), (twin, twins) in graphs:
        check_alike(roots, twin, list(zip(made, twins, strict=True)))


@examples(40)
@given(blueprints(), programs(STEPS), st.sampled_from(sorted(TRANSPARENT)))
def test_a_call_that_raises_leaves_everything_as_it_was(blueprint: Blueprint, program: Program, transform: str) -> None:
    class Halfway(Exception):
        pass

    def f(x: Any, *roots: Any) -> Any:
        run(program, roots, x)
        raise Halfway

    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    try:
        TRANSPARENT[transform](f)(jnp.float32(1), *roots)
    except Halfway:
        check_alike(roots, twin, list(zip(made, twins, strict=True)))
    else:
        raise AssertionError("the error was lost")


@examples(60)
@given(blueprints(), programs((write, take, *READS), results=RESULTS[:2]), st.sampled_from(["jit", "remat", "a loss"]))
def test_a_captured_graph_is_read_as_it_is_now_and_never_written(
    blueprint: Blueprint, program: Program, transform: str
) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)
    variables = [pair for pair in zip(made, twins, strict=True) if isinstance(pair[0], lift.Variable)]
    lifted = TRANSPARENT[transform](lambda x: run(program, roots, x))
    for number in range(3):
        x = jnp.float32(number)
        before = [variable.value for _, variable in variables]
        wanted = run(program, twin, x)
        changed = not alike([variable.value for _, variable in variables], before)
        for (_, variable), value in zip(variables, before, strict=True):
            variable.value = value
        if changed:
            with pytest.raises(lift.errors.CaptureError):
                lifted(x)
        else:
            check_alike(lifted(x), wanted)
        check_alike(roots, twin, list(zip(made, twins, strict=True)))
        for pair in variables:
            for variable in pair:
                variable.value = jnp.full(3, x)
