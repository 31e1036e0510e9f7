"""A call may change a model's structure: the caller's model changes as after a plain call, or an error says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore.errors import CarryError, LiftError
from tests.models import Affine, Counter, Net, both_ways, leaves, weights


class Tree(lift.Module):
    """A model with everything that can change."""

    def __init__(self):
        self.net = Net()
        self.blocks = [Counter(1.0), Counter(2.0)]
        self.named = {"a": Counter(3.0)}
        self.buffer = jnp.ones(2)
        self.flag = 1
        self.tied = self.net.head
        self.weight = lift.Param(jnp.asarray(1.0), axes=("in",))


def add_variable(tree):
    tree.net.extra = lift.Variable(tree.buffer * 2)


def add_submodule(tree):
    tree.net.extra = Counter(5.0)


def add_array(tree):
    tree.net.extra = tree.buffer * 2


def remove_attribute(tree):
    del tree.buffer


def remove_submodule(tree):
    del tree.net.bn


def swap_submodules(tree):
    tree.blocks[0], tree.blocks[1] = tree.blocks[1], tree.blocks[0]


def replace_variable(tree):
    tree.weight = lift.BatchStat(tree.weight.value + 1)


def rename(tree):
    tree.other = tree.__dict__.pop("net")


def append_to_list(tree):
    tree.blocks.append(Counter(7.0))


def pop_from_list(tree):
    tree.blocks.pop(0)


def set_in_dict(tree):
    tree.named["b"] = Counter(8.0)


def replace_list(tree):
    tree.blocks = [*tree.blocks, tree.net.head]


def change_static(tree):
    tree.flag = "on"


def change_function(tree):
    tree.act = jnp.tanh


def change_metadata(tree):
    tree.weight.set_metadata(axes=("out",), frozen=True)


def change_array(tree):
    tree.buffer = tree.buffer * 3


def change_shape(tree):
    tree.weight.value = jnp.ones((2, 2))


def share(tree):
    tree.copy = tree.blocks[0]


def unshare(tree):
    tree.tied = lift.Param(tree.net.head.value)


def close_a_cycle(tree):
    tree.net.parent = tree


CHANGES = [
    add_variable,
    add_submodule,
    add_array,
    remove_attribute,
    remove_submodule,
    swap_submodules,
    replace_variable,
    rename,
    append_to_list,
    pop_from_list,
    set_in_dict,
    replace_list,
    change_static,
    change_function,
    change_metadata,
    change_array,
    change_shape,
    share,
    unshare,
    close_a_cycle,
]


def name_of(change):
    return change.__name__


each_change = pytest.mark.parametrize("change", CHANGES, ids=name_of)

CARRIED_OUT = {
    "jit": lambda change, tree: lift.jit(change)(tree),
    "jit donating": lambda change, tree: lift.jit(change, donate_argnums=0)(tree),
    "remat": lambda change, tree: lift.remat(change)(tree),
    "vmap": lambda change, tree: lift.vmap(change, in_axes=None, axis_size=2, out_axes=None)(tree),
    "grad": lambda change, tree: lift.grad(lambda x, t: (change(t), x)[1])(1.0, tree),
    "grad of the model": lambda change, tree: lift.grad(lambda t: (t.weight.value.sum(), change(t))[0])(tree),
    "jit of vmap of jit": lambda change, tree: lift.jit(
        lift.vmap(lift.jit(change), in_axes=None, axis_size=2, out_axes=None)
    )(tree),
}


@each_change
@pytest.mark.parametrize("transform", CARRIED_OUT.values(), ids=CARRIED_OUT)
def test_a_change_of_structure_arrives_outside_as_after_a_plain_call(change, transform):
    lifted, plain = Tree(), Tree()
    for _ in range(2):
        outcomes = []
        for run in (lambda: transform(change, lifted), lambda: change(plain)):
            try:
                outcomes.append(run() and None)
            except (AttributeError, KeyError) as error:  # what is gone cannot be removed twice
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        (structure, arrays), (expected, expected_arrays) = lift.split(lifted), lift.split(plain)
        assert structure == expected
        for one, other in zip(jax.tree.leaves(arrays), jax.tree.leaves(expected_arrays), strict=True):
            np.testing.assert_array_equal(one, other)


@each_change
def test_objects_that_were_there_keep_their_identity_through_a_change_of_structure(change):
    tree = Tree()
    net, blocks, first, named, weight = tree.net, tree.blocks, tree.blocks[0], tree.named, tree.weight
    lift.jit(change)(tree)
    assert tree.named is named
    assert (tree.blocks is blocks) == (change is not replace_list)
    assert (first in tree.blocks) == (change is not pop_from_list)
    assert (tree.weight is weight) == (change is not replace_variable)
    assert (tree.other if change is rename else tree.net) is net


@both_ways
@pytest.mark.parametrize("change", [one for one in CHANGES if one not in (change_array, swap_submodules)], ids=name_of)
def test_a_carry_that_changes_its_structure_is_an_error_and_leaves_the_model_as_it_was(how, change):
    tree = Tree()
    (structure, _), arrays = lift.split(tree), leaves(tree)

    def step(tree, _):
        change(tree)
        return tree, None

    with pytest.raises(CarryError, match=r"^scan of step: (tree|c)\b"):
        how(lambda t: lift.scan(step, t, None, length=2))(tree)
    assert lift.split(tree)[0] == structure
    assert all(one is other for one, other in zip(leaves(tree), arrays, strict=True))


@both_ways
@each_change
def test_a_change_of_structure_of_a_broadcast_model_in_a_scan_is_an_error_and_never_lost(how, change):
    tree = Tree()
    (structure, _), arrays = lift.split(tree), leaves(tree)
    with pytest.raises(LiftError, match=r"^scan of \w+: tree\b"):
        how(lambda t: lift.scan(change, in_axes=(None,), out_axes=0, length=2)(t))(tree)
    assert lift.split(tree)[0] == structure
    assert all(one is other for one, other in zip(leaves(tree), arrays, strict=True))


@both_ways
def test_arrays_swapped_within_a_carry_are_swapped_after_an_odd_number_of_steps(how):
    tree = Tree()
    first, second = tree.blocks

    def step(tree, _):
        swap_submodules(tree)
        return tree, None

    how(lambda t: lift.scan(step, t, None, length=3))(tree)
    assert tree.blocks == [first, second]
    assert (float(first.count.value), float(second.count.value)) == (2.0, 1.0)


@both_ways
def test_a_scanned_stack_takes_a_new_variable_and_a_new_static_value(how):
    layers = lift.stack([Affine(*weights(seed)) for seed in range(3)])

    def step(layer, x):
        layer.seen = lift.Variable(x)
        layer.used = True
        return layer(x)

    xs = jnp.arange(9.0).reshape(3, 3)
    how(lambda m: lift.scan(step, in_axes=(0, 0), out_axes=0)(m, xs))(layers)
    np.testing.assert_array_equal(layers.seen.value, xs)
    assert layers.used is True


@both_ways
def test_a_list_or_dict_passed_as_an_argument_is_a_copy_inside(how):
    batch = {"x": jnp.ones(2), "y": jnp.zeros(2)}
    layers = [Counter(), Counter()]

    def program(batch, layers):
        y = batch.pop("y")
        layers.pop().add(1.0)
        return y

    how(lambda b, c: lift.jit(program)(b, c))(batch, layers)
    assert sorted(batch) == ["x", "y"]
    assert len(layers) == 2
    assert float(layers[1].count.value) == 1.0
