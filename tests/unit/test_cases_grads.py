"""Gradients: what is differentiated in a model, in which container they come, and what is left alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import liftcore as lift
from liftcore.errors import AliasError, GradError
from tests.models import Affine, Config, Counter, both_ways, each_family, weights

X = jnp.arange(1.0, 4.0)


class Full(Affine):
    """A model with everything that cannot be differentiated."""

    def __init__(self):
        super().__init__(*weights())
        self.steps = lift.Variable(jnp.asarray(0))
        self.rngs = lift.Rngs(0, dropout=1)
        self.mask = jnp.asarray([True, False, True])
        self.stat = lift.BatchStat(jnp.ones(3))


def plain(arrays):
    weight, bias = arrays
    return jnp.tanh(X @ weight + bias).sum()


@both_ways
@each_family
def test_gradients_are_those_of_jax_in_the_container_of_the_state(family, how):
    model = family.make(*weights())
    value, grads = how(lambda m: lift.value_and_grad(lambda m: family.apply(m, X).sum())(m))(model)
    expected, expected_grads = jax.value_and_grad(plain)(weights())
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert jax.tree.structure(grads) == jax.tree.structure(lift.state(model, "param"))
    for one, other in zip(family.picked(grads), expected_grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    only = how(lambda m: lift.grad(lambda m: family.apply(m, X).sum())(m))(model)
    assert jax.tree.structure(only) == jax.tree.structure(grads)


@both_ways
def test_counters_streams_masks_and_statistics_are_not_differentiated_and_may_be_used(how):
    def loss(m):
        m.steps.value = m.steps.value + 1
        noise = jax.random.uniform(m.rngs.dropout(), (3,))
        m.stat.value = m.stat.value * 2
        return (jnp.where(m.mask, m(X), 0.0) + noise * 0.0).sum() + m.stat.value.sum()

    model = Full()
    grads = how(lambda m: lift.grad(loss)(m))(model)
    assert sorted(grads) == ["bias", "weight"]
    np.testing.assert_allclose(grads["bias"], (1 - model(X) ** 2) * model.mask, rtol=1e-4)
    assert (int(model.steps.value), int(model.rngs.dropout.count.value)) == (1, 1)
    np.testing.assert_array_equal(model.stat.value, jnp.full(3, 2.0))


@both_ways
def test_integers_and_keys_in_trees_are_not_differentiated(how):
    class Tree(eqx.Module):
        weight: jax.Array
        steps: jax.Array
        key: jax.Array
        rate: float
        config: Config

    tree = Tree(jnp.asarray(2.0), jnp.asarray(3), jax.random.key(0), 0.5, Config())
    loss = lift.grad(lambda t: t.weight**t.steps * t.rate)
    gradient = how(lambda t: loss(t))(tree)
    assert float(gradient.weight) == 6.0
    assert (gradient.steps, gradient.key, gradient.config) == (None, None, None)
    plain = {"weight": jnp.asarray(2.0), "steps": 3, "key": jax.random.key(0), "config": Config()}
    assert how(lambda t: lift.grad(lambda t: t["weight"] ** t["steps"])(t))(plain) == {
        "weight": 12.0,
        "steps": None,
        "key": None,
        "config": None,
    }


@both_ways
@pytest.mark.parametrize(
    ("loss", "argument"),
    [
        (lambda c: 1.0, lambda: lift.Variable(jnp.asarray(1.0))),
        (lambda c: c.count.value, Counter),
        (lambda n: n * 1.0, lambda: 3),
        (lambda t: t["n"].sum() * 1.0, lambda: {"n": jnp.arange(3)}),
        (lambda s: 1.0, lambda: "text"),
    ],
    ids=["variable", "statistics", "int", "integers", "string"],
)
def test_nothing_differentiable_is_an_error_that_says_so(loss, argument, how):
    with pytest.raises(GradError, match=r"grad of <lambda>: argnums=0\n(.|\n)*nothing to differentiate"):
        how(lambda a: lift.grad(loss)(a))(argument())


@both_ways
def test_a_shared_parameter_has_one_summed_gradient_through_grad_jit_and_an_optimizer_step(how):
    model = lift.Module()
    model.embed = lift.Param(jnp.asarray([1.0, 2.0]))
    model.out = model.embed
    optimizer = optax.sgd(0.5)

    def step(m):
        grads = lift.grad(lambda m: (m.embed.value * m.out.value * jnp.asarray([1.0, 3.0])).sum())(m)
        updates, _ = optimizer.update(grads, optimizer.init(lift.state(m, "param")))
        lift.update(m, optax.apply_updates(lift.state(m, "param"), updates))
        return grads

    grads = how(lambda m: step(m))(model)
    assert list(grads) == ["embed"]
    np.testing.assert_array_equal(grads["embed"], [2, 12])
    assert model.out is model.embed
    np.testing.assert_array_equal(model.out.value, [0, -4])


@both_ways
def test_a_parameter_shared_by_two_differentiated_arguments_is_summed_in_the_first(how):
    one, other = Affine(*weights()), Affine(*weights(1))
    other.bias = one.bias
    lifted = lift.grad(lambda a, b: (a.bias + 2 * b.bias).sum(), argnums=(0, 1))
    first, second = how(lambda a, b: lifted(a, b))(one, other)
    np.testing.assert_array_equal(first["bias"], jnp.full(3, 3.0))
    assert sorted(second) == ["weight"]


@both_ways
def test_a_parameter_shared_by_a_differentiated_and_another_argument_is_an_error(how):
    one, other = Affine(*weights()), Affine(*weights(1))
    other.bias = one.bias
    with pytest.raises(AliasError, match=r"grad of <lambda>: a\.bias and b\.bias are one Param\n.*: diff.*\n.*: not "):
        how(lambda a, b: lift.grad(lambda a, b: (a.bias * b.bias).sum())(a, b))(one, other)


class Lora(lift.Param):
    """A kind of its own."""


FILTERS = {
    "kind": (lift.Param, ["adapter", "bias", "weight"]),
    "tag": ("batch_stat", ["stat"]),
    "subclass": (Lora, ["adapter"]),
    "path": (lift.PathContains("bias"), ["bias"]),
    "leaf": (lambda leaf: leaf.ndim == 2, ["weight"]),
    "path and leaf": (lambda path, leaf: path[-1] == "stat", ["stat"]),
    "all but": (lift.All("param", lift.Not(lift.PathContains("weight"))), ["adapter", "bias"]),
    "several": ([Lora, "batch_stat"], ["adapter", "stat"]),
}


@both_ways
@pytest.mark.parametrize(("chosen", "expected"), FILTERS.values(), ids=FILTERS)
def test_a_filter_chooses_what_is_differentiated(chosen, expected, how):
    model = Full()
    model.adapter = Lora(jnp.ones(3))
    grads = how(
        lambda m: lift.grad(lambda m: (m(X) * m.adapter + m.stat * m.adapter).sum(), argnums=lift.DiffState(0, chosen))(
            m
        )
    )(model)
    assert sorted(grads) == expected
    if "stat" in expected:
        np.testing.assert_array_equal(grads["stat"], jnp.ones(3))
    if "adapter" in expected:
        np.testing.assert_allclose(grads["adapter"], model(X) + 1, rtol=1e-6)


@both_ways
@each_family
@pytest.mark.parametrize(
    "chosen",
    [lift.PathContains("bias"), lambda path, leaf: path[-1] in ("bias", 1), lambda leaf: leaf.ndim == 1],
    ids=["PathContains", "path", "leaf"],
)
def test_a_filter_chooses_in_every_family_and_leaves_the_rest_alone(family, chosen, how):
    if family.name == "pytree" and isinstance(chosen, lift.PathContains):
        chosen = lift.PathContains(1)
    model = family.make(*weights())
    argnums = lift.DiffState("m", chosen)
    grads = how(lambda m: lift.grad(lambda m: family.apply(m, X).sum(), argnums=argnums)(m))(model)
    (bias,) = jax.tree.leaves(grads)
    np.testing.assert_allclose(bias, jax.grad(plain)(weights())[1], rtol=1e-5)


def test_an_equinox_module_of_bools_chooses_what_is_differentiated():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    spec = eqx.tree_at(lambda m: m.layers[-1].bias, jax.tree.map(lambda _: False, model), replace=True)
    grads = lift.grad(lambda m: m(X).sum(), argnums=lift.DiffState(0, spec))(model)
    np.testing.assert_array_equal(grads.layers[-1].bias, jnp.ones(2))
    assert len(jax.tree.leaves(grads)) == 1


@both_ways
@each_family
def test_aux_may_be_the_model_itself(family, how):
    model = family.make(*weights())
    grads, (same, y) = how(lambda m: lift.grad(lambda m: (family.apply(m, X).sum(), (m, 1.0)), has_aux=True)(m))(model)
    assert len(jax.tree.leaves(grads)) == 2
    assert float(y) == 1.0
    if family.name == "objects":
        assert same is model
    for one, other in zip(family.arrays(same), weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@both_ways
def test_a_parameter_made_or_overwritten_in_the_loss_stays_and_the_gradient_is_to_what_came_in(how):
    model = Affine(jnp.ones((3, 3)), jnp.zeros(3))

    def loss(m):
        m.extra = lift.Param(m.bias * 2.0)
        m.weight.value = m.weight.value * 3.0
        return (m.weight.value**2).sum()

    grads = how(lambda m: lift.grad(loss)(m))(model)
    np.testing.assert_array_equal(grads["weight"], jnp.full((3, 3), 18.0))
    np.testing.assert_array_equal(model.weight.value, jnp.full((3, 3), 3.0))
    np.testing.assert_array_equal(model.extra.value, jnp.zeros(3))
    assert sorted(grads) == ["bias", "weight"]


@both_ways
def test_nested_gradients_through_written_state(how):
    counter, x = Counter(2.0), jnp.asarray(3.0)

    def inner(x, c):
        c.count.value = c.count.value * x**2
        return c.count.value

    second = how(lambda x, c: lift.grad(lambda x, c: lift.grad(inner)(x, c) + c.count.value)(x, c))
    # The inner gradient is 2cx, the state left behind c x^2: the derivative of their sum is 2c + 2cx.
    assert float(second(x, counter)) == 2 * 2 + 2 * 2 * 3
    assert float(counter.count.value) == 18.0


@both_ways
def test_the_object_of_a_bound_method_is_not_differentiated_unless_named(how):
    class Model(Affine):
        def loss(self, x):
            return self(x).sum()

    model = Model(*weights())
    np.testing.assert_allclose(
        how(lambda m, x: lift.grad(m.loss)(x))(model, X), jax.grad(lambda x: model(x).sum())(X), rtol=1e-5
    )
    grads = how(lambda m, x: lift.grad(m.loss, argnums=lift.DiffState("self", "param"))(x))(model, X)
    np.testing.assert_allclose(grads["weight"], jax.grad(plain)(weights())[0], rtol=1e-5)


@both_ways
def test_several_argnums_give_a_tuple_and_names_work_too(how):
    a, b = jnp.asarray(2.0), jnp.asarray(5.0)
    assert how(lambda a, b: lift.grad(lambda a, b: a * b, argnums=(1, 0))(a, b))(a, b) == (2.0, 5.0)
    assert how(lambda a, b: lift.grad(lambda a, b: a * b, argnums="b")(a, b))(a, b) == 2.0
    assert how(lambda a, b: lift.grad(lambda a, b: a * b, argnums=-1)(a, b=b))(a, b) == 2.0
    one = how(lambda a, b: lift.grad(lambda a, b: a * b, argnums=(0,))(a, b))(a, b)
    assert isinstance(one, tuple)
    assert one == (5.0,)


def test_complex_and_integer_gradients_are_those_of_jax():
    z = jnp.asarray([1.0 + 2.0j])
    holomorphic = lift.grad(lambda z: (z["z"] ** 2).sum(), holomorphic=True)({"z": z})
    np.testing.assert_allclose(holomorphic["z"], 2 * z)
    integers = {"w": jnp.asarray(2.0), "n": jnp.asarray(3)}
    grads = lift.grad(lambda t: t["w"] * t["n"], allow_int=True)(integers)
    assert float(grads["w"]) == 3.0
    assert grads["n"].dtype == jax.dtypes.float0
