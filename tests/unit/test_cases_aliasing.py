"""Shared objects: one object inside, one set of words about it, the same object again outside; donation among them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import AliasError, CarryError
from tests.models import Affine, Counter, both_ways, weights


class Pair(lift.Module):
    """Two modules that may share."""

    def __init__(self, first, second):
        self.first = first
        self.second = second


def stacked(axis=0):
    counter = Counter()
    counter.count.value = jnp.moveaxis(jnp.arange(4.0).reshape(2, 2), 0, axis)
    return counter


MAPPED = {
    "vmap": lambda f, axes: lift.vmap(f, in_axes=axes),
    "scan": lambda f, axes: lift.scan(f, in_axes=axes, out_axes=0),
}
each_mapped = pytest.mark.parametrize("transform", MAPPED.values(), ids=MAPPED)


@both_ways
@each_mapped
@pytest.mark.parametrize("axes", [(0, 1), (0, None), (None, 1), (lift.StateAxes({...: 0}), 1)])
def test_one_object_passed_twice_with_different_axes_is_an_error_with_both_sides(how, transform, axes):
    def both(one, other):
        return one.count + other.count

    counter = stacked()
    before = counter.count.value
    first, second = (0 if isinstance(axis, lift.StateAxes) else axis for axis in axes)
    words = [f"axis {axis}" if axis is not None else "None" for axis in (first, second)]
    sides = rf"\n  one\.count: {words[0]}\n  other\.count: {words[1]}\n"
    with pytest.raises(AliasError, match=rf"of both: one\.count and other\.count are one BatchStat{sides}"):
        how(lambda m: transform(both, axes)(m, m))(counter)
    assert counter.count.value is before


@both_ways
@each_mapped
@pytest.mark.parametrize("axes", [(0, 0), (1, -1), (-1, 1), (-2, 0), (lift.StateAxes({"batch_stat": 0}), 0)])
def test_one_object_passed_twice_with_one_axis_is_one_object_inside(how, transform, axes):
    def both(one, other):
        one.add(1.0)
        return jnp.asarray(one is other), other.count.value

    counter = stacked()
    same, values = how(lambda m: transform(both, axes)(m, m))(counter)
    assert same.all()
    expected = jnp.arange(4.0).reshape(2, 2) + 1
    np.testing.assert_array_equal(counter.count.value, expected)
    np.testing.assert_array_equal(values, expected if axes[0] in (0, -2) or axes[1] == 0 else expected.T)


@both_ways
@each_mapped
def test_a_submodule_shared_by_two_arguments_needs_one_axis(how, transform):
    shared = stacked()
    one, other = Pair(shared, stacked()), Pair(stacked(), shared)

    def both(one, other):
        return one.first.add(1.0) + other.second.count

    with pytest.raises(AliasError, match=r"one\.first\.count and other\.second\.count are one BatchStat\n.*0\n.*1\n"):
        how(lambda a, b: transform(both, (0, 1))(a, b))(one, other)
    by_path = lift.StateAxes([(lift.PathContains("first"), 0), (..., 1)])
    with pytest.raises(AliasError, match=r"one\.first\.count and other\.second\.count"):
        how(lambda a, b: transform(both, (by_path, by_path))(a, b))(one, other)
    ys = how(lambda a, b: transform(both, (0, 0))(a, b))(one, other)
    np.testing.assert_array_equal(ys, 2 * (jnp.arange(4.0).reshape(2, 2) + 1))
    np.testing.assert_array_equal(shared.count.value, jnp.arange(4.0).reshape(2, 2) + 1)


@both_ways
def test_one_module_reached_by_two_paths_of_one_argument_with_different_axes_is_an_error(how):
    shared = stacked()
    pair = Pair(shared, shared)
    axes = lift.StateAxes([(lift.PathContains("first"), 0), (..., 1)])

    def total(pair):
        return pair.first.count + pair.second.count

    with pytest.raises(AliasError, match=r"pair\.first\.count and pair\.second\.count are one BatchStat\n.*0\n.*1\n"):
        how(lambda p: lift.vmap(total, in_axes=axes)(p))(pair)


@both_ways
def test_an_object_returned_under_another_axis_is_an_error_and_a_tree_is_transposed(how):
    module = stacked()
    with pytest.raises(AliasError, match=r"vmap of <lambda>: m\.count and return\.count are .*\n.*axis 0\n.*axis 1\n"):
        how(lambda m: lift.vmap(lambda m: m, out_axes=1)(m))(module)

    def nested(m):
        new = lift.Module()
        new.new = m
        return (new,)

    with pytest.raises(AliasError, match=r"m\.count and return\[0\]\.new\.count"):
        how(lambda m: lift.vmap(nested, out_axes=1)(m))(module)
    tree = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    np.testing.assert_array_equal(
        how(lambda m: lift.vmap(lambda m: m.weight, out_axes=1)(m))(tree), jnp.swapaxes(tree.weight, 0, 1)
    )
    array = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(how(lambda x: lift.vmap(lambda x: x, out_axes=-1)(x))(array), array.T)


@both_ways
def test_a_broadcast_object_may_be_returned_only_without_an_axis(how):
    module = Counter()
    with pytest.raises(AliasError, match=r"m\.count: None\n  return\[0\]\.count: axis 0"):
        how(lambda m, x: lift.vmap(lambda m, x: (m, x), in_axes=(None, 0))(m, x))(module, jnp.ones(2))
    program = how(lambda m, x: lift.vmap(lambda m, x: (m, x), in_axes=(None, 0), out_axes=(None, 0))(m, x))
    assert program(module, jnp.ones(2))[0] is module


@both_ways
@pytest.mark.parametrize(
    "identity",
    [
        lambda f, m: lift.jit(f)(m),
        lambda f, m: lift.remat(f)(m),
        lambda f, m: lift.vmap(f)(m),
        lambda f, m: lift.vmap(f, in_axes=-1, out_axes=-1)(m),
        lambda f, m: lift.grad(lambda x, m: (x, f(m)), has_aux=True)(1.0, m)[1],
        lambda f, m: lift.jit(f, donate_argnums=0)(m),
    ],
    ids=["jit", "remat", "vmap", "vmap at the last axis", "grad", "jit donating"],
)
def test_what_came_in_comes_out_as_the_same_object(how, identity):
    pair = Pair(stacked(), stacked())
    pair.again = pair.first

    def call(f):
        return how(lambda m: identity(f, m))(pair)

    assert call(lambda m: m) is pair
    assert call(lambda m: m.first) is pair.first
    first, second = call(lambda m: [m.second, m.again])
    assert first is pair.second
    assert second is pair.first is pair.again
    made = call(lambda m: Pair(m.second, m.first.count))
    assert made.first is pair.second
    assert made.second is pair.first.count


@both_ways
def test_two_objects_made_inside_that_share_are_outside_two_objects_that_share(how):
    def make(x):
        shared = Counter(x)
        return Pair(shared, shared), shared

    pair, shared = how(lambda x: lift.jit(make)(x))(3.0)
    assert pair.first is pair.second is shared
    shared.add(1.0)
    assert float(pair.second.count.value) == 4.0


@both_ways
def test_the_object_in_a_place_of_the_carry_is_the_one_that_came_in_there(how):
    first, second = Counter(1.0), Counter(2.0)

    def swap(pair, x):
        one, other = pair
        one.add(10.0)
        return (other, one), one.count.value

    (a, b), ys = how(lambda a, b: lift.scan(swap, (a, b), jnp.arange(3)))(first, second)
    assert (a, b) == (first, second)
    np.testing.assert_array_equal(ys, [11, 12, 21])
    assert (float(a.count.value), float(b.count.value)) == (12.0, 21.0)


@both_ways
def test_a_fresh_object_in_the_carry_gives_its_values_to_the_one_that_came_in(how):
    counter = Counter(1.0)
    last, ys = how(lambda c: lift.scan(lambda c, x: (Counter(c.count + x), c.count.value), c, jnp.arange(4.0)))(counter)
    assert last is counter
    assert float(counter.count.value) == 7.0
    np.testing.assert_array_equal(ys, [1, 1, 2, 4])


@both_ways
def test_a_carry_that_shares_what_came_in_apart_is_an_error_that_names_the_places(how):
    def join(pair, x):
        return (pair[0], pair[0]), None

    first, second = Counter(1.0), Counter(2.0)
    with pytest.raises(CarryError, match=r"scan of join: pair\[1\](.|\n)*pair\[0\]"):
        how(lambda a, b: lift.scan(join, (a, b), jnp.arange(2)))(first, second)
    assert (float(first.count.value), float(second.count.value)) == (1.0, 2.0)


@both_ways
def test_a_carried_object_may_not_be_scanned_as_well(how):
    counter = stacked()
    with pytest.raises(AliasError, match=r"scan of <lambda>: a\.count and b\.count .*\n.*carried\n.*axis 0"):
        how(lambda c: lift.scan(lambda a, b: (a, None), in_axes=(Carry, 0))(c, c))(counter)


@both_ways
def test_ties_in_trees_stay_two_leaves_and_own_objects_keep_theirs(how):
    array = jnp.asarray(3.0)
    tree = {"a": array, "b": array}
    assert how(lambda t: lift.grad(lambda t: t["a"] * t["b"])(t))(tree) == {"a": 3.0, "b": 3.0}
    own = Pair(Counter(), None)
    own.first = own.second = lift.Param(array)
    gradient = how(lambda m: lift.grad(lambda m: m.first.value * m.second.value)(m))(own)
    assert dict(gradient) == {"first": 6.0}


@pytest.mark.parametrize("both", [True, False], ids=["both donated", "one donated"])
def test_donating_tied_weights_and_a_target_network_leaves_both_valid(both):
    model = Affine(*weights())
    model.tied = model.weight
    target = lift.clone(model)
    expected = model.weight.value * 0.5 + target.weight.value * 0.5 + 1

    def step(model, target):
        model.weight.value = model.weight.value + 1
        target.weight.value = 0.5 * model.weight.value + 0.5 * target.weight.value

    lifted = lift.jit(step, donate_argnums=(0, 1) if both else 0)
    lifted(model, target)
    np.testing.assert_allclose(model.weight.value, expected, rtol=1e-6)
    np.testing.assert_allclose(target.weight.value, expected - 0.5, rtol=1e-6)
    assert model.tied is model.weight
    lifted(model, target)
    np.testing.assert_allclose(model.tied.value, expected + 1, rtol=1e-6)
    np.testing.assert_allclose(model(jnp.zeros(3)), jnp.tanh(model.bias.value))


def test_a_donated_tree_with_one_array_in_two_places_is_no_error():
    array = jnp.ones(4)
    out = lift.jit(lambda t: {"a": t["a"] + 1, "b": t["b"] + 2}, donate_argnums=0)({"a": array, "b": array})
    np.testing.assert_array_equal(out["a"] + out["b"], jnp.full(4, 5.0))


def test_a_donated_unchanged_reference_beside_a_changed_one_of_the_same_shape_stays_valid():
    pair = Pair(lift.Param(jnp.ones(4)), lift.Param(jnp.zeros(4)))

    def step(pair):
        pair.second.value = pair.second.value + pair.first.value

    for _ in range(2):
        lift.jit(step, donate_argnums=0)(pair)
    np.testing.assert_array_equal(pair.first.value, jnp.ones(4))
    np.testing.assert_array_equal(pair.second.value, jnp.full(4, 2.0))


def test_a_reference_reached_through_a_donated_and_a_kept_argument_is_an_error():
    model = Affine(*weights())
    with pytest.raises(AliasError, match=r"jit of <lambda>: a\.bias and b are one Param\n.*donated\n.*kept"):
        lift.jit(lambda a, b: None, donate_argnums=0)(model, model.bias)
    np.testing.assert_array_equal(model.bias.value, weights()[1])
