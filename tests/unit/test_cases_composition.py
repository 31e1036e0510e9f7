"""Lifted transforms around, below and beside plain JAX, one another, and models of all families in one call."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import WriteError
from tests.models import FAMILIES, Affine, BatchNorm, Counter, assert_equal, both_ways, each_family, weights

XS = jax.random.normal(jax.random.key(3), (4, 3))


def stack(family, depth=2):
    return lift.stack([family.make(*weights(seed)) for seed in range(depth)])


@both_ways
@each_family
def test_plain_vmap_over_a_lifted_scan_of_a_captured_stack(family, how):
    layers = stack(family)

    def plain(x):
        for seed in range(2):
            x = family.apply(family.make(*weights(seed)), x)
        return x

    def deep(x):
        return lift.scan(lambda x, layer: (family.apply(layer, x), None), x, layers)[0]

    program = how(lambda xs: jax.vmap(deep)(xs))
    np.testing.assert_allclose(program(XS), jax.vmap(plain)(XS), rtol=1e-5)
    np.testing.assert_allclose(how(lambda x: jax.jit(jax.jacrev(deep))(x))(XS[0]), jax.jacrev(plain)(XS[0]), rtol=1e-4)


WITH_MODEL = {
    "jit": lambda f, m, x: lift.jit(f)(m, x),
    "remat": lambda f, m, x: lift.remat(f)(m, x),
    "vmap": lambda f, m, x: lift.vmap(f, in_axes=(None, 0))(m, x[None])[0],
    "scan": lambda f, m, x: lift.scan(f, in_axes=(None, 0), out_axes=0)(m, x[None])[0],
    "grad": lambda f, m, x: lift.grad(lambda m, x: (f(m, x).sum(), f(m, x)), has_aux=True)(m, x)[1],
}
AROUND = {
    "plain jit": lambda f: jax.jit(f),
    "plain vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "plain jacrev": lambda f: jax.jacrev(f),
    "plain scan": lambda f: lambda x: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.stack([x, 2 * x]))[1],
    "plain cond": lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: 2 * f(x), x),
    "plain hessian": lambda f: jax.jit(jax.hessian(lambda x: f(x).sum())),
    "lifted jit": lambda f: lift.jit(f),
    "lifted vmap": lambda f: lambda x: lift.vmap(f)(jnp.stack([x, 2 * x])),
    "lifted grad": lambda f: lift.grad(lambda x: f(x).sum()),
    "lifted scan": lambda f: lambda x: lift.scan(lambda c, x: (c, f(x)), 0.0, jnp.stack([x, 2 * x]))[1],
}


@pytest.mark.parametrize(
    ("family", "inner"),
    [(FAMILIES[0], inner) for inner in WITH_MODEL] + [(family, "jit") for family in FAMILIES[1:]],
    ids=[*WITH_MODEL, "equinox in jit", "pytree in jit"],
)
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_model_that_is_only_read_composes_with_plain_and_lifted_transforms_around(family, inner, around):
    model, (weight, bias) = family.make(*weights()), weights()
    lifted = around(lambda x: WITH_MODEL[inner](family.apply, model, x))(XS[0])
    np.testing.assert_allclose(lifted, around(lambda x: jnp.tanh(x @ weight + bias))(XS[0]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("around", [jax.vmap, lambda f: lambda x: jax.lax.map(f, x), jax.jit, jax.grad])
@pytest.mark.parametrize("inner", [lift.jit, lift.remat], ids=["jit", "remat"])
def test_a_write_that_plain_jax_around_would_lose_is_an_error(around, inner):
    counter = Counter()
    before = counter.count.value
    x = jnp.asarray(1.0) if around is jax.grad else jnp.ones(3)
    with pytest.raises(WriteError, match=r"lift\."):
        around(lambda x: inner(lambda c, x: c.add(x))(counter, x))(x)
    assert counter.count.value is before


@both_ways
def test_writes_pass_through_every_level_of_nested_lifted_calls(how):
    counter = Counter(1.0)

    def innermost(c, x):
        c.add(x)
        return c.count.value

    def program(c, x):
        first = lift.jit(lift.remat(innermost))(c, x)
        second = lift.scan(lambda c, x: (c, lift.jit(innermost)(c, x)), c, x * jnp.ones(2))[1]
        gradient, value = lift.grad(lambda x, c: (lift.jit(innermost)(c, x),) * 2, has_aux=True)(x, c)
        return first, second, gradient, value

    first, second, gradient, value = how(program)(counter, 2.0)
    assert float(first) == 3.0
    np.testing.assert_array_equal(second, [5, 7])
    assert (float(gradient), float(value), float(counter.count.value)) == (1.0, 9.0, 9.0)


@both_ways
def test_a_stack_of_counters_is_written_in_nested_vmaps(how):
    counters = lift.stack([lift.stack([Counter(10.0 * i + j) for j in range(3)]) for i in range(2)])
    xs = jnp.arange(6.0).reshape(2, 3)
    ys = how(lambda c, x: lift.vmap(lift.vmap(Counter.add))(c, x))(counters, xs)
    expected = jnp.asarray([[0.0, 2, 4], [13, 15, 17]])
    np.testing.assert_array_equal(ys, expected)
    np.testing.assert_array_equal(counters.count.value, expected)
    how(lambda c, x: lift.vmap(lift.vmap(Counter.add, in_axes=0), in_axes=1)(c, x))(counters, xs)
    np.testing.assert_array_equal(counters.count.value, expected + xs)


@both_ways
def test_models_of_all_families_train_in_one_call(how):
    own, tree, plain = (family.make(*weights(seed)) for seed, family in enumerate(FAMILIES))
    counter = Counter()

    def loss(models, x):
        counter_, own, tree, plain = models
        counter_.add(1.0)
        for family, model in zip(FAMILIES, (own, tree, plain), strict=True):
            x = family.apply(model, x)
        return x.sum()

    def reference(arrays, x):
        for weight, bias in arrays:
            x = jnp.tanh(x @ weight + bias)
        return x.sum()

    value, grads = how(lambda *models: lift.value_and_grad(loss)(models, XS))(counter, own, tree, plain)
    expected, expected_grads = jax.value_and_grad(reference)([weights(seed) for seed in range(3)], XS)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    picked = [family.picked(each) for family, each in zip(FAMILIES, grads[1:], strict=True)]
    assert_equal(picked, expected_grads)
    assert float(counter.count.value) == 1.0


@both_ways
def test_families_inside_one_another(how):
    class Holder(eqx.Module):
        inner: object
        scale: jax.Array

    own = Affine(*weights())
    own.tree = Holder({"counter": Counter()}, jnp.asarray(2.0))
    own.plain = {"w": jnp.asarray(3.0), "list": [Counter(1.0)]}
    outer = Holder([own, own.plain["list"][0]], jnp.asarray(4.0))

    def step(outer, x):
        model, counter = outer.inner
        model.tree.inner["counter"].add(model.tree.scale)
        counter.add(model.plain["w"] * outer.scale)
        model.plain["w"] = model.plain["w"] + 1
        return model(x)

    for _ in range(2):
        np.testing.assert_allclose(how(lambda o, x: lift.jit(step)(o, x))(outer, XS), own(XS), rtol=1e-6)
    assert float(own.tree.inner["counter"].count.value) == 4.0
    assert float(own.plain["list"][0].count.value) == 1.0 + 12.0 + 16.0
    assert float(own.plain["w"]) == 5.0


@both_ways
def test_lifted_calls_inside_of_a_module_s_own_methods(how):
    class Deep(lift.Module):
        def __init__(self):
            self.layers = stack(FAMILIES[0])
            self.norm = BatchNorm("batch")

        def __call__(self, x):
            x = lift.scan(lambda x, layer: (lift.remat(Affine.__call__)(layer, x), None), x, self.layers)[0]
            return lift.vmap(lambda norm, x: norm(x), in_axes=(None, 0), axis_name="batch")(self.norm, x)

    def reference(x):
        for seed in range(2):
            x = Affine(*weights(seed))(x)
        return x - x.mean()

    model = Deep()
    loss = lift.value_and_grad(lambda m, x: ((m(x)) ** 2).sum())
    value, grads = how(lambda m, x: loss(m, x))(model, XS[0])
    np.testing.assert_allclose(value, (reference(XS[0]) ** 2).sum(), rtol=1e-5)
    assert sorted(grads) == ["layers", "norm"]
    assert grads["layers"]["weight"].shape == (2, 3, 3)
    gradient = how(lambda m, x: lift.grad(lambda x, m: loss(m, x)[0])(x, m))(model, XS[0])
    np.testing.assert_allclose(gradient, jax.grad(lambda x: (reference(x) ** 2).sum())(XS[0]), rtol=1e-4, atol=1e-5)


@both_ways
@each_family
def test_a_hessian_and_gradients_per_example_through_lifted_gradients(family, how):
    model, arrays = family.make(*weights()), weights()

    def loss(m, x):
        return family.apply(m, x).sum()

    def plain(arrays, x):
        return jnp.tanh(x @ arrays[0] + arrays[1]).sum()

    per_example = how(lambda m, x: lift.vmap(lift.grad(loss), in_axes=(None, 0))(m, x))(model, XS)
    expected = jax.vmap(jax.grad(plain), in_axes=(None, 0))(arrays, XS)
    assert_equal(family.picked(per_example), expected)
    row = lift.grad(lambda x, m: lift.grad(loss, argnums=1)(m, x)[0])
    curvature = how(lambda m, x: row(x, m))(model, XS[0])
    np.testing.assert_allclose(curvature, jax.hessian(plain, argnums=1)(arrays, XS[0])[0], rtol=1e-4, atol=1e-6)


@both_ways
@each_family
def test_a_scan_gives_the_gradients_of_the_loop_written_out(family, how):
    def deep(layers, x):
        return lift.scan(lambda x, layer: (family.apply(layer, x), None), x, layers)[0].sum()

    def plain(arrays, x):
        for weight, bias in zip(*arrays, strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x.sum()

    layers = stack(family, 3)
    gradient = how(lambda m, x: lift.grad(deep)(m, x))(layers, XS)
    expected = jax.grad(plain)(family.arrays(layers), XS)
    assert_equal(family.picked(gradient), expected)


@both_ways
def test_a_scan_over_a_mix_of_carried_and_scanned_arguments_agrees_with_jax(how):
    def step(model, carry, x, scale):
        return {"h": carry["h"] * model["w"] + x}, (carry["h"], x * scale)

    arguments = {"w": jnp.asarray(0.5)}, {"h": jnp.zeros(3)}, XS, jnp.asarray(2.0)
    lifted = how(
        lambda m, c, x, s: lift.scan(step, in_axes=(None, Carry, 0, None), out_axes=(Carry, (0, 1)))(m, c, x, s)
    )
    last, (hs, ys) = lifted(*arguments)
    expected, (expected_hs, expected_ys) = jax.lax.scan(
        lambda c, x: step(arguments[0], c, x, arguments[3]), arguments[1], XS
    )
    assert_equal((last, hs, ys), (expected, expected_hs, expected_ys.T))


@pytest.mark.parametrize("init", [0, 0.0, jnp.float32(0), np.float32(0)])
def test_a_number_as_the_carry_is_promoted_as_in_jax(init):
    def step(c, x):
        return c + x, c

    assert_equal(lift.scan(step, init, XS[:, 0]), jax.lax.scan(step, init, XS[:, 0]))
