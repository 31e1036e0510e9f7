"""Split, merge, state, update, clone, stack and unstack on random object graphs."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import liftcore as lift
from tests.property.graphs import Blueprint, Leaf, array, build
from tests.property.likeness import alike, check_alike, objects
from tests.property.strategies import blueprints, examples

FILTERS: tuple[Any, ...] = (
    "param",
    "batch_stat",
    lift.Param,
    lambda leaf: jnp.ndim(leaf) > 1,
    lift.PathContains("a"),
    None,
)


def shifted(blueprint: Blueprint, by: float) -> tuple[Any, list[Any]]:
    return build(blueprint, lambda _, leaf: array(leaf) + by)


@examples(60)
@given(blueprints(), st.lists(st.sampled_from(FILTERS), max_size=2))
def test_merge_of_split_is_the_identity(blueprint: Blueprint, filters: list[Any]) -> None:
    roots, made = build(blueprint)
    wanted = [*filters, ...] if filters else []
    structure, *states = lift.split(roots, *wanted)
    merged = lift.merge(structure, *states)
    # The very arrays; and the original is as it was.
    check_alike(merged, roots, same=operator.is_)
    check_alike(roots, build(blueprint)[0])
    assert not {id(obj) for obj in objects(merged)} & {id(obj) for obj in made}
    again, *_ = lift.split(merged)
    assert again == lift.split(roots)[0] == structure
    assert hash(again) == hash(structure)
    leaves = [leaf for state in states for leaf in jax.tree.leaves(state)]
    whole = jax.tree.leaves(lift.state(roots))
    assert sorted(map(id, leaves)) == sorted(map(id, whole))


# A function that closes over an object is only like itself.
COMPARABLE = blueprints(trees=("tuple", "list", "dict", "affine", "pair", "point", "partial", "method"))


@examples(50)
@given(COMPARABLE, COMPARABLE)
def test_structures_are_equal_exactly_where_the_graphs_are_alike(one: Blueprint, other: Blueprint) -> None:
    first, second = build(one)[0], build(other)[0]
    same = alike(first, second, lambda mine, theirs: True)
    assert (lift.split(first)[0] == lift.split(second)[0]) == same
    assert lift.split(build(one)[0])[0] == lift.split(build(one)[0])[0]


@examples(40)
@given(blueprints())
def test_a_clone_is_independent(blueprint: Blueprint) -> None:
    roots, _ = build(blueprint)
    clone = lift.clone(roots)
    check_alike(clone, roots)
    for obj in objects(clone):
        if isinstance(obj, lift.Variable):
            obj.value = jnp.zeros(5)
        elif isinstance(obj, lift.Module):
            vars(obj).clear()
        else:
            obj.clear()
    check_alike(roots, build(blueprint)[0])


@examples(60)
@given(blueprints())
def test_update_with_the_own_state_changes_nothing_and_with_anothers_all_arrays(blueprint: Blueprint) -> None:
    roots, made = build(blueprint)
    state = lift.state(roots)
    result = lift.update(roots, state)
    twin, twins = build(blueprint)
    pairs = list(zip(made, twins, strict=True))
    check_alike((roots, result), (twin, twin), pairs)
    result = lift.update(roots, jax.tree.map(lambda leaf: leaf + 1, state))
    wanted, twins = shifted(blueprint, 1)
    check_alike(result, wanted, list(zip(made, twins, strict=True)))


@examples(40)
@given(COMPARABLE)
def test_unstack_is_the_inverse_of_stack(blueprint: Blueprint) -> None:
    def lane(number: int) -> Any:
        return build(blueprint, lambda _, leaf: array(leaf, number))[0]

    def stacked(_: int, leaf: Leaf) -> Any:
        return jnp.stack([jnp.asarray(array(leaf, number)) for number in range(3)])

    stack = lift.stack([lane(number) for number in range(3)])
    check_alike(stack, build(blueprint, stacked)[0])
    if jax.tree.leaves(lift.state(stack)):
        lanes = lift.unstack(stack)
        assert len(lanes) == 3
        for number, one in enumerate(lanes):
            check_alike(one, lane(number), same=np.allclose)
