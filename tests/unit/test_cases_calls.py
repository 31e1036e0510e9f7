"""How a lifted function may be called: keywords, names, bound methods, callable models, decorators in a class body."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import AxisError, BindError, GradError, LiftError, PrefixError
from tests.models import Affine, Counter, both_ways, each_family, weights

XS = jax.random.normal(jax.random.key(7), (4, 3))


@both_ways
def test_keyword_arguments_are_mapped_over_their_leading_axis_as_in_jax(how):
    def scale(x, *, s):
        return x * s

    x, s = jnp.arange(3.0), jnp.arange(3.0) + 1
    expected = jax.vmap(scale)(x, s=s)
    np.testing.assert_array_equal(how(lambda x, s: lift.vmap(scale)(x, s=s))(x, s), expected)


@both_ways
@pytest.mark.parametrize("axes", [{"x": 0, "s": None}, {"s": None}])
def test_axes_by_parameter_name_hold_for_arguments_passed_in_either_way(how, axes):
    scale = lift.vmap(lambda x, s: x * s, in_axes=axes)
    x, s = jnp.arange(3.0), jnp.ones(2)
    expected = x[:, None] * s
    np.testing.assert_array_equal(how(lambda x, s: scale(x, s=s))(x, s), expected)
    np.testing.assert_array_equal(how(lambda x, s: scale(x, s))(x, s), expected)
    np.testing.assert_array_equal(how(lambda x, s: scale(s=s, x=x))(x, s), expected)


@both_ways
def test_the_bound_object_is_mapped_by_its_own_name(how):
    class Ensemble(Affine):
        def forward(self, x):
            return self(x)

    members = [Ensemble(*weights(seed)) for seed in range(4)]
    expected = jnp.stack([member(XS[0]) for member in members])
    stacked = lift.stack(members)
    program = how(lambda m, x: lift.vmap(m.forward, in_axes={"self": 0, "x": None})(x))
    np.testing.assert_allclose(program(stacked, XS[0]), expected, rtol=1e-6)


@both_ways
@each_family
def test_a_method_a_callable_model_and_a_partial_of_it_are_lifted_like_a_function(family, how):
    model = family.make(*weights())
    expected = jnp.stack([family.apply(model, x) for x in XS])
    spellings = [lambda m: functools.partial(family.apply, m)]
    if family.name != "pytree":
        spellings += [lambda m: m, lambda m: m.decode, lambda m: m.__call__]

    def program(m, x):
        for spelling in spellings:
            yield lift.vmap(spelling(m))(x)
            yield lift.jit(spelling(m))(x)
            yield lift.remat(spelling(m), policy=jax.checkpoint_policies.dots_saveable)(x)
            yield lift.scan(spelling(m), in_axes=0, out_axes=0)(x)

    for ys in how(lambda m, x: list(program(m, x)))(model, XS):
        np.testing.assert_allclose(ys, expected, rtol=1e-5)


def test_state_written_by_a_bound_method_or_a_callable_object_is_kept():
    class Accumulator(Counter):
        def __call__(self, x):
            return self.add(x)

    counter = Accumulator()
    lift.jit(counter)(1.0)
    lift.jit(counter.add)(2.0)
    lift.jit(Accumulator.add)(counter, 4.0)
    lift.remat(counter.add)(8.0)
    lift.vmap(counter.add, axis_size=2, in_axes=None, out_axes=None)(16.0)
    lift.grad(counter)(32.0)
    assert float(counter.count.value) == 63.0


def test_decorators_in_a_class_body_take_self_as_an_ordinary_first_parameter():
    class Model(lift.Module):
        def __init__(self):
            self.weight = lift.Param(jnp.asarray(3.0))
            self.calls = lift.BatchStat(jnp.asarray(0))

        @lift.jit
        def forward(self, x):
            self.calls.value = self.calls.value + 1
            return x * self.weight

        @lift.vmap(in_axes=(None, 0))
        def rows(self, x):
            return x * self.weight

        @lift.jit(static_argnums=2)
        def power(self, x, n):
            return x**n * self.weight

        @lift.remat(static_argnums=(2,), policy=jax.checkpoint_policies.nothing_saveable)
        def again(self, x, n):
            return x**n * self.weight

        @lift.grad
        def loss(self, x):
            return (x * self.weight).sum()

        @lift.scan(in_axes=(None, Carry, 0))
        def loop(self, c, x):
            return c + x * self.weight, c

    model = Model()
    np.testing.assert_array_equal(model.forward(jnp.ones(2)), [3, 3])
    np.testing.assert_array_equal(Model.forward(model, 2.0), 6)
    assert int(model.calls.value) == 2
    np.testing.assert_array_equal(model.rows(jnp.arange(3.0)), [0, 3, 6])
    assert float(model.power(2.0, 3)) == 24.0
    assert float(model.again(2.0, 3)) == 24.0
    assert float(model.loss(jnp.ones(4))["weight"]) == 4.0
    last, ys = model.loop(0.0, jnp.arange(3.0))
    assert float(last) == 9.0
    np.testing.assert_array_equal(ys, [0, 0, 3])


@both_ways
def test_decorators_in_an_equinox_class_body(how):
    class Model(eqx.Module):
        weight: jax.Array

        @lift.jit
        def __call__(self, x):
            return x * self.weight

        @lift.vmap(in_axes=(None, 0))
        def rows(self, x):
            return x * self.weight

    model = Model(jnp.asarray(3.0))
    assert float(how(lambda m, x: m(x))(model, 2.0)) == 6.0
    np.testing.assert_array_equal(how(lambda m, x: m.rows(x))(model, jnp.arange(3.0)), [0, 3, 6])


@both_ways
def test_what_a_function_is_bound_to_is_not_counted_by_argument_numbers(how):
    class Model(Counter):
        def scaled(self, x, n):
            self.add(x)
            return x * n

    def program(m, x):
        static = lift.jit(m.scaled, static_argnums=1)(x, 3)
        donated = lift.jit(m.scaled, donate_argnums=0)(x + 0, 3)
        gradient = lift.grad(m.scaled)(x, 3.0)
        rows = lift.vmap(m.scaled, in_axes=(None, 0))(x, jnp.arange(2.0))
        return static, donated, gradient, rows

    model = Model()
    static, donated, gradient, rows = how(program)(model, jnp.asarray(2.0))
    assert (float(static), float(donated), float(gradient)) == (6.0, 6.0, 3.0)
    np.testing.assert_array_equal(rows, [0, 2])
    assert float(model.count.value) == 8.0


def test_a_static_argument_number_holds_for_an_argument_passed_by_keyword_too():
    lifted = lift.jit(lambda x, n: x**n if n > 1 else x, static_argnums=1)
    assert float(lifted(3.0, n=2)) == float(lifted(3.0, 2)) == 9.0
    by_name = lift.jit(lambda x, n: x**n if n > 1 else x, static_argnames="n")
    assert float(by_name(3.0, 2)) == float(by_name(3.0, n=2)) == 9.0


@both_ways
def test_variable_positional_and_keyword_arguments(how):
    def total(*xs, **named):
        return sum(xs) + named["a"] * named.get("b", 0)

    a, b = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_array_equal(how(lambda a, b: lift.vmap(total)(a, a, a=b, b=b))(a, b), 2 * a + 1)
    np.testing.assert_array_equal(how(lambda a, b: lift.vmap(total, in_axes=(0, None))(a, 1.0, a=b))(a, b), a + 1)
    np.testing.assert_array_equal(how(lambda a, b: lift.jit(total)(a, b, a=1, b=2))(a, b), a + 3)


@both_ways
def test_functions_of_libraries_are_lifted_like_one_s_own(how):
    np.testing.assert_allclose(how(lambda x: lift.jit(jnp.sin)(x))(XS), jnp.sin(XS), rtol=1e-6)
    np.testing.assert_allclose(how(lambda x: lift.vmap(jnp.add)(x, x))(XS), 2 * XS)
    np.testing.assert_allclose(how(lambda x: lift.vmap(lift.grad(jnp.sin))(x))(XS[0]), jnp.cos(XS[0]), rtol=1e-6)
    np.testing.assert_allclose(how(lambda x: lift.vmap(jax.jit(jnp.sin))(x))(XS), jnp.sin(XS), rtol=1e-6)
    np.testing.assert_allclose(how(lambda x: lift.vmap(operator.mul, in_axes=(0, None))(x, 2.0))(XS), 2 * XS)


def test_a_lifted_function_keeps_the_name_and_the_words_of_the_function():
    def step(x):
        """Words."""
        return x

    for transform in (lift.jit, lift.vmap, lift.grad, lift.value_and_grad, lift.remat, lift.scan):
        assert transform(step).__name__ == "step"
        assert transform(step).__doc__ == "Words."
    assert "jit_step" in lift.jit(step).lower(1.0).as_text()


@both_ways
@pytest.mark.parametrize(
    ("program", "error", "match"),
    [
        (lambda x: lift.jit(lambda x: x)(x, x), BindError, r"jit of <lambda>: .*\(x\).*\n.*2 positional"),
        (lambda x: lift.vmap(lambda x, y: x)(x), BindError, r"vmap of <lambda>: .*\n.*\n.*'y'"),
        (lambda x: lift.jit(lambda x: x)(x, z=1), BindError, r"jit of <lambda>: .*\n.*z\n.*'z'"),
        (lambda x: lift.vmap(lambda x, y: x, in_axes=(0,))(x, x), PrefixError, r"in_axes has 1 entr"),
        (lambda x: lift.vmap(lambda x: x, in_axes=(0, None))(x), PrefixError, r"in_axes has 2 entries"),
        (lambda x: lift.vmap(lambda x: x, in_axes={"z": 0})(x), PrefixError, r"in_axes names 'z'.*\n.*: x\n"),
        (lambda x: lift.vmap(lambda b: b["y"], in_axes=({"y": 0},))([x]), PrefixError, r"vmap of <lambda>: b\n"),
        (
            lambda x: lift.vmap(lambda b: b["y"], in_axes=({"y": (0, 0)},))({"y": (x,)}),
            PrefixError,
            r"vmap of <lambda>: b\.y\n.*tuple of 2.*\n.*tuple of 1",
        ),
        (lambda x: lift.vmap(lambda x: x, out_axes=(0, 0))(x), PrefixError, r"vmap of <lambda>: return\n"),
        (lambda x: lift.vmap(lambda x: (x, x), out_axes=(0,))(x), PrefixError, r"vmap of <lambda>: return\n"),
        (lambda x: lift.vmap(lambda x: x, in_axes="0")(x), PrefixError, r"vmap of <lambda>: x\n.*'0'"),
        (lambda x: lift.vmap(lambda x: x, out_axes=0.5)(x), PrefixError, r"vmap of <lambda>: .*\n.*0\.5"),
        (lambda x: lift.vmap(lambda x: x, in_axes=3)(x), AxisError, r"vmap of <lambda>: x, shape \(4, 3\)\n.*3"),
        (lambda x: lift.vmap(lambda x: x, out_axes=-4)(x), AxisError, r"vmap of <lambda>: return, shape \(3,\)"),
        (lambda x: lift.vmap(lambda x, y: x)(x, x[:2]), AxisError, r"vmap of <lambda>: .*\n.*4: .* x, .*\n.*2: .* y,"),
        (
            lambda x: lift.scan(lambda c, x: (c, x), 0.0, x, length=3),
            AxisError,
            r"scan of <lambda>: .*\n.*3: .*\n.*4: ",
        ),
        (lambda x: lift.vmap(lambda: x)(), AxisError, r"vmap of <lambda>: "),
        (lambda x: lift.scan(lambda c, x: (c, None), 0.0, None), AxisError, r"scan of <lambda>: "),
        (lambda x: lift.scan(lambda c, x: c, 0.0, x), PrefixError, r"scan of <lambda>: the output of one step"),
        (lambda x: lift.jit(lambda x: x, static_argnums=1)(x), BindError, r"jit of <lambda>: static_argnums.* 1\n"),
        (lambda x: lift.jit(lambda x: x, donate_argnames="z")(x), BindError, r"donate_argnames selects 'z'"),
        (lambda x: lift.remat(lambda x: x, static_argnums=1)(x), BindError, r"remat of <lambda>: static_argnums .* 1"),
        (lambda x: lift.grad(lambda x: x.sum(), argnums=1)(x), BindError, r"grad of <lambda>: argnums selects 1"),
        (lambda x: lift.grad(lambda x: x.sum(), argnums=(0, 0))(x), GradError, r"grad of <lambda>: argnums=\(0, 0\)"),
        (lambda x: lift.grad(lambda x: x)(x), GradError, r"grad of <lambda>: the loss\n.*\(4, 3\)"),
        (lambda x: lift.grad(lambda x: x.sum(), has_aux=True)(x), GradError, r"grad of <lambda>: .*has_aux"),
    ],
)
def test_a_wrong_call_is_an_error_that_names_the_parameter_and_both_sides(how, program, error, match):
    with pytest.raises(error, match=match) as raised:
        how(program)(XS)
    words = str(raised.value)
    assert not any(word in words for word in ("Bucket", "Opaque", "<captured>", "NoneType", "Spec("))


@pytest.mark.parametrize("name", ["flag", "training"])
def test_a_traced_flag_used_in_python_names_the_parameter_and_the_way_out(name):
    def step(x, flag=True, training=True):
        return x if {"flag": flag, "training": training}[name] else -x

    with pytest.raises(LiftError, match=rf'jit of step: argument {name}\b[\s\S]*static_argnames="{name}"') as error:
        lift.jit(step)(1.0, **{name: True})
    assert isinstance(error.value, TypeError)
    assert float(lift.jit(step, static_argnames=name)(1.0, **{name: False})) == -1.0


@both_ways
@pytest.mark.parametrize(
    "transform", [lift.jit, lift.vmap, lift.grad, lift.value_and_grad, lift.remat, lift.scan(in_axes=0, out_axes=0)]
)
def test_an_error_of_the_user_s_own_comes_out_as_it_is(transform, how):
    class Boom(Exception):
        pass

    def bad(x):
        raise Boom(1)

    with pytest.raises(Boom) as error:
        how(lambda x: transform(bad)(x))(jnp.ones(3))
    assert error.value.args == (1,)
