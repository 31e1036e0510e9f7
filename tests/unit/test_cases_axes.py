"""Axes of every family: one spelling, spellings by filter, by leaf, by module, and the axes that results get."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import AxisError
from tests.models import Affine, Counter, both_ways, each_family, weights

XS = jax.random.normal(jax.random.key(5), (4, 3))
STACKED = weights(stack=(4,))


def expected_rows():
    return jnp.stack([jnp.tanh(x @ w + b) for x, w, b in zip(XS, *STACKED, strict=True)])


@both_ways
@each_family
def test_a_stack_of_models_is_mapped_whatever_static_values_it_holds(family, how):
    members = [family.make(w, b) for w, b in zip(*STACKED, strict=True)]
    stacked = lift.stack(members)
    axes = (0, lift.StateAxes({...: 0}), lift.StateAxes({"param": 0}))
    program = how(lambda m, x: [lift.vmap(family.apply, in_axes=(axis, 0))(m, x) for axis in axes])
    for ys in program(stacked, XS):
        np.testing.assert_allclose(ys, expected_rows(), rtol=1e-5)
    ys = how(lambda m, x: lift.vmap(family.apply, in_axes=(0, None))(m, x))(stacked, XS[0])
    np.testing.assert_allclose(ys, jnp.stack([family.apply(member, XS[0]) for member in members]), rtol=1e-5)
    for one, other in zip(lift.unstack(stacked), members, strict=True):
        for mine, theirs in zip(family.arrays(one), family.arrays(other), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@both_ways
@each_family
def test_an_ensemble_built_by_vmap_is_called_by_vmap(family, how):
    def make(key):
        one, other = jax.random.split(key)
        return family.make(jax.random.normal(one, (3, 3)), jax.random.normal(other, (3,)))

    keys = jax.random.split(jax.random.key(0), 4)
    ensemble = how(lambda keys: lift.vmap(make)(keys))(keys)
    expected = jnp.stack([family.apply(make(key), XS[0]) for key in keys])
    ys = how(lambda m, x: lift.vmap(family.apply, in_axes=(0, None))(m, x))(ensemble, XS[0])
    np.testing.assert_allclose(ys, expected, rtol=1e-5)


@both_ways
def test_the_activation_of_an_equinox_mlp_is_nobody_s_business(how):
    keys = jax.random.split(jax.random.key(0), 4)
    mlps = how(lambda k: lift.vmap(lambda key: eqx.nn.MLP(3, 2, 4, 1, key=key))(k))(keys)
    ys = how(lambda m, x: lift.vmap(lambda m, x: m(x), in_axes=(0, None))(m, x))(mlps, XS[0])
    expected = jnp.stack([eqx.nn.MLP(3, 2, 4, 1, key=key)(XS[0]) for key in keys])
    np.testing.assert_allclose(ys, expected, rtol=1e-5)


BY_FILTER = {
    "path": lift.StateAxes({lift.PathContains("weight"): 0, lift.PathContains(0): 0, ...: None}),
    "leaf": lift.StateAxes([(lambda leaf: leaf.ndim == 3, 0), (..., None)]),
    "path and leaf": lift.StateAxes([(lambda path, leaf: leaf.ndim == 3, 0), (..., None)]),
    "in": lift.StateAxes(
        [(lift.All(lift.In(Affine), lift.PathContains("weight")), 0), (lambda x: x.ndim == 3, 0), (..., None)]
    ),
}


@both_ways
@each_family
@pytest.mark.parametrize("axes", BY_FILTER.values(), ids=BY_FILTER)
@pytest.mark.parametrize("transform", ["vmap", "scan"])
def test_a_filter_gives_each_leaf_its_own_axis_in_every_family(family, axes, transform, how):
    model = family.make(STACKED[0], weights()[1])
    run = {
        "vmap": lambda m, x: lift.vmap(family.apply, in_axes=(axes, 0))(m, x),
        "scan": lambda m, x: lift.scan(family.apply, in_axes=(axes, 0), out_axes=0)(m, x),
    }[transform]
    expected = jnp.stack([jnp.tanh(x @ w + weights()[1]) for x, w in zip(XS, STACKED[0], strict=True)])
    np.testing.assert_allclose(how(run)(model, XS), expected, rtol=1e-5)


@both_ways
def test_filters_by_enclosing_module_in_an_equinox_model(how):
    class Two(eqx.Module):
        first: eqx.nn.Linear
        second: eqx.nn.MLP

    keys = jax.random.split(jax.random.key(0), 4)
    linears = lift.stack([eqx.nn.Linear(3, 3, key=key) for key in keys])
    model = Two(linears, eqx.nn.MLP(3, 2, 4, 1, key=keys[0]))
    inside = lift.All(lift.In(eqx.nn.Linear), lift.Not(lift.In(eqx.nn.MLP)))
    axes = lift.StateAxes([(inside, 0), (..., None)])
    ys = how(lambda m, x: lift.vmap(lambda m, x: m.second(m.first(x)), in_axes=(axes, None))(m, x))(model, XS[0])
    expected = jnp.stack([model.second(eqx.nn.Linear(3, 3, key=key)(XS[0])) for key in keys])
    np.testing.assert_allclose(ys, expected, rtol=1e-5)


@both_ways
def test_filters_reach_variables_inside_dicts_and_lists(how):
    arguments = {"w": lift.Param(STACKED[0]), "more": [lift.BatchStat(jnp.asarray(1.0)), jnp.ones(4)]}

    def step(a, x):
        a["more"][0].value = a["more"][0].value + 1
        return x @ a["w"].value + a["more"][1]

    axes = lift.StateAxes({"batch_stat": None, lift.Param: 0, ...: 0})
    ys = how(lambda a, x: lift.vmap(step, in_axes=(axes, 0))(a, x))(arguments, XS)
    np.testing.assert_allclose(ys, jnp.einsum("li,lij->lj", XS, STACKED[0]) + 1, rtol=1e-5)
    assert float(arguments["more"][0].value) == 2.0
    carried = lift.StateAxes({"batch_stat": Carry, ...: 0})
    how(lambda a, x: lift.scan(step, in_axes=(carried, 0), out_axes=0)(a, x))(arguments, XS)
    assert float(arguments["more"][0].value) == 6.0


@both_ways
@pytest.mark.parametrize("argument", ["object", "tree", "dict", "array"])
def test_one_argument_needs_no_tuple_around_its_axes(argument, how):
    value = {
        "object": Counter(np.arange(3.0)),
        "tree": eqx.nn.Lambda(jnp.tanh),
        "dict": {"a": jnp.arange(3.0)},
        "array": jnp.arange(3.0),
    }[argument]
    read = {"object": lambda c: c.count.value, "tree": lambda t: 1.0, "dict": lambda d: d["a"], "array": lambda a: a}
    axes = lift.StateAxes({...: 0})
    lifted = lift.vmap(read[argument], in_axes=axes, axis_size=3)
    assert how(lambda v: lifted(v))(value).shape == (3,)
    assert how(lambda v: lift.vmap(read[argument], in_axes=(axes,), axis_size=3)(v))(value).shape == (3,)


@both_ways
def test_equinox_spellings_of_axes(how):
    mlps = lift.vmap(lambda key: eqx.nn.MLP(3, 2, 4, 1, key=key))(jax.random.split(jax.random.key(0), 4))
    expected = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))(mlps, XS[0])
    prefixes = (eqx.if_array(0), jax.tree.map(lambda leaf: 0 if eqx.is_array(leaf) else None, mlps))
    program = how(lambda m, x: [lift.vmap(lambda m, x: m(x), in_axes=(prefix, None))(m, x) for prefix in prefixes])
    for ys in program(mlps, XS[0]):
        np.testing.assert_allclose(ys, expected, rtol=1e-5)
    last = eqx.tree_at(lambda m: m.layers[-1].bias, jax.tree.map(lambda _: None, mlps), 0, is_leaf=lambda x: x is None)
    single = eqx.tree_at(lambda m: m.layers[-1].bias, eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(1)), jnp.ones((4, 2)))
    assert how(lambda m, x: lift.vmap(lambda m, x: m(x), in_axes=(last, None))(m, x))(single, XS[0]).shape == (4, 2)


@both_ways
@each_family
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_model_made_inside_gets_the_out_axis(family, axis, how):
    made = how(lambda b: lift.vmap(lambda b: family.make(jnp.outer(b, b), b), out_axes=axis)(b))(STACKED[1])
    weight, bias = family.arrays(made)
    np.testing.assert_allclose(bias, jnp.moveaxis(STACKED[1], 0, axis))
    expected = jnp.moveaxis(jax.vmap(jnp.outer)(STACKED[1], STACKED[1]), 0, axis)
    np.testing.assert_allclose(weight, expected)


@both_ways
def test_out_axes_by_filter(how):
    out = lift.StateAxes({"param": 1, "batch_stat": 0})

    def make(x):
        counter, model = Counter(), lift.Module()
        counter.add(x)
        model.counter, model.w = counter, lift.Param(x * jnp.ones(2))
        return model

    model = how(lambda x: lift.vmap(make, out_axes=out)(x))(jnp.arange(3.0))
    np.testing.assert_array_equal(model.counter.count.value, jnp.arange(3.0))
    np.testing.assert_array_equal(model.w.value, jnp.arange(3.0) * jnp.ones((2, 1)))


@both_ways
@each_family
def test_an_axis_that_a_leaf_does_not_have_names_the_leaf(family, how):
    model = family.make(jnp.ones((4, 3)), jnp.ones(()))
    leaf = {"objects": r"model\.bias", "equinox": r"model\.bias", "pytree": r"model\.layer\[1\]"}[family.name]

    def forward(model, x):
        return family.apply(model, x)

    with pytest.raises(AxisError, match=rf"vmap of forward: {leaf}, shape \(\)\n  its axis is 0"):
        how(lambda m, x: lift.vmap(forward)(m, x))(model, XS)
    model = family.make(jnp.ones((3, 4)), jnp.ones(2))
    with pytest.raises(AxisError, match=rf"vmap of forward: .*\n.*3: axis 0 .*\n.*2: axis 0 of {leaf}, shape \(2,\)"):
        how(lambda m, x: lift.vmap(forward, in_axes=(0, None))(m, x))(model, XS)
