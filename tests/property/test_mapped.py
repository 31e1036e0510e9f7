"""Random programs on random object graphs under vmap and scan: lane by lane and step by step what plain Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import liftcore as lift
from liftcore import Carry
from liftcore.errors import LiftError
from tests.property.graphs import Blueprint, Box, Leaf, array, build
from tests.property.likeness import check_alike, close, leaves, numbers
from tests.property.programs import READS, STRUCTURE, WRITES, Program, call, run, write
from tests.property.strategies import blueprints, examples, programs

LANES = 2
ARRAYS = ("float", "float", "int", "numpy")
GRAPHS = blueprints(forms=ARRAYS)
SQUARE = blueprints(forms=ARRAYS, shapes=((2,), (2, 3)))
STEPS = (*WRITES, *READS, *STRUCTURE)
STEADY = (write, *READS)  # keep the structure, shapes and dtypes
XS = jnp.arange(1.0, LANES + 1)


def of(program: Program, inner: Callable[..., Any] = lambda f: f) -> Callable[..., Any]:
    return lambda x, *roots: run(program, roots, x, inner)


def stacked(leaf: Leaf, axis: int = 0) -> Any:
    lanes = [array(leaf, lane) for lane in range(LANES)]
    return np.stack(lanes, axis) if leaf.form == "numpy" else jnp.stack(lanes, axis)


def in_lane(lane: int) -> Callable[[Any, Any], bool]:
    """Compares one lane of an array, or an array that all lanes share, with what plain Python has there."""
    return lambda found, wanted: close(found if np.ndim(found) == np.ndim(wanted) else found[lane], wanted)


def is_integer(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.integer))


def check_lanes(blueprint: Blueprint, program: Program, roots: Any, made: list[Any], found: Any) -> None:
    for lane in range(LANES):
        twin, twins = build(blueprint, lambda _, leaf, lane=lane: array(leaf, lane))
        wanted = run(program, twin, XS[lane])
        check_alike((roots, found), (twin, wanted), list(zip(made, twins, strict=True)), in_lane(lane))


@examples(60)
@given(GRAPHS, programs(STEPS))
def test_vmap_does_in_each_lane_what_plain_python_does(blueprint: Blueprint, program: Program) -> None:
    roots, made = build(blueprint, lambda _, leaf: stacked(leaf))
    found = lift.vmap(of(program))(XS, *roots)
    check_lanes(blueprint, program, roots, made, found)


@examples(40)
@given(GRAPHS, programs(STEPS))
def test_scan_without_a_carry_does_in_each_step_what_plain_python_does(blueprint: Blueprint, program: Program) -> None:
    roots, made = build(blueprint, lambda _, leaf: stacked(leaf))
    found = lift.scan(of(program), in_axes=0, out_axes=0)(XS, *roots)
    check_lanes(blueprint, program, roots, made, found)


@examples(40)
@given(GRAPHS, programs((call, *STEPS, call)), st.sampled_from(["vmap", "scan"]), st.sampled_from(["jit", "remat"]))
def test_a_lifted_call_inside_of_a_lane_or_step(blueprint: Blueprint, program: Program, outer: str, inner: str) -> None:
    roots, made = build(blueprint, lambda _, leaf: stacked(leaf))
    f = of(program, {"jit": lift.jit, "remat": lift.remat}[inner])
    found = {"vmap": lift.vmap, "scan": lift.scan}[outer](f, in_axes=0, out_axes=0)(XS, *roots)
    check_lanes(blueprint, program, roots, made, found)


@examples(60)
@given(GRAPHS, st.one_of(programs(STEPS), programs(STEADY)), st.sampled_from(["vmap", "scan"]))
def test_what_is_broadcast_in_part_is_right_or_refused(blueprint: Blueprint, program: Program, transform: str) -> None:
    def value(_: int, leaf: Leaf) -> Any:
        return array(leaf) if leaf.form == "int" else stacked(leaf)

    (roots, made), (before, befores) = build(blueprint, value), build(blueprint, value)
    axes = lift.StateAxes([(is_integer, None), (..., 0)])
    lifted = {"vmap": lift.vmap, "scan": lift.scan}[transform](of(program), in_axes=axes, out_axes=axes)
    try:
        found = lifted(XS, *roots)
    except LiftError:
        check_alike(roots, before, list(zip(made, befores, strict=True)))
        # In vmap a broadcast value may be written with one that all lanes share.
        assert transform == "scan" or any(step.name not in ("write", "read", "write_same") for step in program.steps)
        return
    for lane in range(LANES):
        twin, twins = build(blueprint, lambda _, leaf, lane=lane: array(leaf, 0 if leaf.form == "int" else lane))
        wanted = run(program, twin, XS[lane])
        check_alike((roots, found), (twin, wanted), list(zip(made, twins, strict=True)), in_lane(lane))


@examples(50)
@given(blueprints(), st.one_of(programs(STEPS), programs(STEADY)))
def test_a_carried_graph_goes_through_all_steps_or_is_refused(blueprint: Blueprint, program: Program) -> None:
    (roots, made), (twin, twins) = build(blueprint), build(blueprint)

    def step(carry: Any, x: Any) -> Any:
        y, _ = run(program, carry, x)
        return carry, y

    try:
        after, ys = lift.scan(step, roots, XS)
    except LiftError:
        check_alike(roots, twin, list(zip(made, twins, strict=True)))
        assert any(step.name not in ("write", "read", "write_same") for step in program.steps)
        return
    wanted = [step(twin, x)[1] for x in XS]
    # What a place holds is compared, not which object: a carry is by position.
    check_alike((after, list(ys)), (twin, wanted))
    assert after[0] is roots[0]


def flattened(blueprint: Blueprint, program: Program) -> Callable[..., Any]:
    """The program as a function of arrays by number: (arrays, x) -> (y, arrays)."""
    order = numbers(blueprint)

    def plain(arrays: dict[int, Any], x: Any) -> Any:
        roots, _ = build(blueprint, lambda number, _: arrays[number])
        y, _ = run(program, roots, x)
        return y, dict(zip(order, (leaf for leaf, _, _ in leaves(roots)), strict=True))

    return plain


@examples(60)
@given(SQUARE, programs(STEADY), st.sampled_from([0, 1, -1]), st.sampled_from([0, None, -1]))
def test_vmap_over_any_axis_is_that_of_jax(blueprint: Blueprint, program: Program, axis: int, other: Any) -> None:
    """Integers have one axis, all else another."""
    blueprint = Blueprint(blueprint.objects, blueprint.roots[:1])
    axes: dict[int, Any] = {}
    before: dict[int, Any] = {}

    def value(number: int, leaf: Leaf) -> Any:
        axes[number] = other if leaf.form == "int" else axis
        before[number] = array(leaf) if axes[number] is None else stacked(leaf, axes[number])
        return before[number]

    (root,), made = build(blueprint, value)
    plain = flattened(blueprint, program)
    wanted, after = jax.vmap(plain, in_axes=(axes, 0), out_axes=(0, axes))(before, XS)
    state = lift.StateAxes([(is_integer, other), (..., axis)])
    found = lift.vmap(lambda x, root: run(program, (root,), x)[0], in_axes=(0, state))(XS, root)
    (twin,), twins = build(blueprint, lambda number, _: after[number])
    check_alike(root, twin, list(zip(made, twins, strict=True)))
    assert close(found, wanted)


@examples(25)
@given(SQUARE, programs(STEADY), st.sampled_from([0, 1]))
def test_scan_with_carried_and_scanned_state_is_that_of_jax(blueprint: Blueprint, program: Program, axis: int) -> None:
    """Integers are carried, all else is scanned."""
    blueprint = Blueprint(blueprint.objects, blueprint.roots[:1])
    carried: dict[int, Any] = {}
    scanned: dict[int, Any] = {}

    def value(number: int, leaf: Leaf) -> Any:
        if leaf.form == "int":
            carried[number] = array(leaf)
            return carried[number]
        scanned[number] = stacked(leaf)
        return stacked(leaf, axis)

    (root,), made = build(blueprint, value)
    plain = flattened(blueprint, program)

    def step(carry: Any, one: Any) -> Any:
        y, after = plain({**carry, **one[0]}, one[1])
        return {number: after[number] for number in carry}, (y, {number: after[number] for number in one[0]})

    last, (wanted, outs) = jax.lax.scan(step, carried, (scanned, XS))
    state = lift.StateAxes([(is_integer, Carry), (..., axis)])
    found = lift.scan(lambda x, root: run(program, (root,), x)[0], in_axes=(0, state), out_axes=0)(XS, root)
    after = {**last, **{number: jnp.moveaxis(leaf, 0, axis) for number, leaf in outs.items()}}
    (twin,), twins = build(blueprint, lambda number, _: after[number])
    check_alike(root, twin, list(zip(made, twins, strict=True)))
    assert close(found, wanted)


@pytest.mark.parametrize("transform", ["vmap", "scan"])
def test_a_filter_of_leaves_is_asked_about_leaves_only(transform: str) -> None:
    model = Box()
    model.v = lift.Param(jnp.ones((2, 3)))

    def f(model: Box) -> None:
        model.flag = "set"

    axes = lift.StateAxes({lambda leaf: leaf.ndim > 5: None, ...: 0})
    {"vmap": lift.vmap, "scan": lift.scan}[transform](f, in_axes=axes, out_axes=0)(model)
    assert model.flag == "set"
