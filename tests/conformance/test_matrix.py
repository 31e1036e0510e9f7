"""Every transform, with every lift type that it takes, over every family equals plain JAX on the arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import liftcore as lift
from liftcore import registry
from tests.conformance.matrix import Cell, cells

MATRIX = pytest.mark.parametrize("cell", list(cells()), ids=str)
FAMILIES = pytest.mark.parametrize("name", registry.family_cases.names())


@MATRIX
def test_values_and_state(cell: Cell) -> None:
    cell.check_values()


@MATRIX
def test_values_and_state_when_compiled(cell: Cell) -> None:
    cell.check_values(lift.jit)


@MATRIX
def test_gradients(cell: Cell) -> None:
    cell.check_gradients()


@MATRIX
def test_gradients_when_compiled(cell: Cell) -> None:
    cell.check_gradients(lift.jit)


@MATRIX
def test_a_step_that_raises_leaves_the_model_as_it_was(cell: Cell) -> None:
    cell.check_interrupted()


def test_every_transform_has_a_case_and_every_case_a_transform_or_lift_type() -> None:
    cases = set(registry.cases.names())
    assert set(registry.transforms.names()) <= cases
    assert cases <= {*registry.transforms.names(), *registry.lifts.names()}


def test_every_family_has_a_case_and_every_case_a_family() -> None:
    assert registry.family_cases.names() == registry.families.names()


def test_every_lift_type_is_taken_by_a_case() -> None:
    taken = {name for case in registry.cases.names() for name in registry.cases.get(case).lift_types}
    assert taken == set(registry.lifts.names())


@FAMILIES
def test_a_family_case_depends_on_both_arrays(name: str) -> None:
    case = registry.family_cases.get(name)
    arrays = {"kernel": jnp.full((3, 3), 0.1), "bias": jnp.full(3, 0.2)}
    x = jnp.full((2, 3), 0.5)
    y = case.apply(case.make(arrays), x)
    assert y.shape == x.shape
    for changed in arrays:
        other = case.apply(case.make({**arrays, changed: 2 * arrays[changed]}), x)
        assert jnp.all(abs(other - y) > 1e-3)


@FAMILIES
def test_a_family_case_through_the_functional_api(name: str) -> None:
    case = registry.family_cases.get(name)
    pair = [{"kernel": jnp.full((3, 3), float(n)), "bias": jnp.full(3, 10.0 + n)} for n in range(2)]
    one, other = map(case.make, pair)
    again = case.arrays(lift.merge(*lift.split(one)))
    assert all(again[key] is array for key, array in pair[0].items())
    copy = lift.clone(one)
    case.write(copy, pair[1])
    assert all(case.arrays(one)[key] is array for key, array in pair[0].items())
    moved = lift.update(one, lift.state(other))
    assert all(case.arrays(moved)[key] is array for key, array in pair[1].items())
    assert len(jax.tree.leaves(lift.state(one, "param"))) == 2
    stacked = lift.stack([case.make(arrays) for arrays in pair])
    for key, array in case.arrays(stacked).items():
        assert array.tolist() == jnp.stack([arrays[key] for arrays in pair]).tolist()
    for model, arrays in zip(lift.unstack(stacked), pair, strict=True):
        assert all(case.arrays(model)[key].tolist() == array.tolist() for key, array in arrays.items())
