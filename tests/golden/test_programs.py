"""What JAX gets is what a person would have written by hand, equation by equation, for models of every family."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import liftcore as lift
from liftcore import Carry
from tests.models import Counter, each_family, weights

X, XS = jnp.ones(3), jnp.ones((4, 3))


def affine(arrays, x):
    weight, bias = arrays
    return jnp.tanh(x @ weight + bias)


def program(f, *arguments):
    """The jaxpr's text, in which JAX names variables in the order of the equations."""
    return str(jax.make_jaxpr(f)(*arguments))


def equations(f, *arguments):
    """Equations, inner ones in place of the call, variables by number: inner arguments may stand in any order."""
    numbers = {}

    def number(variable):
        return str(variable) if hasattr(variable, "val") else numbers.setdefault(variable, len(numbers))

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            inner = [getattr(value, "jaxpr", value) for value in equation.params.values() if hasattr(value, "eqns")]
            yield equation.primitive.name
            for each in inner:
                numbers.update(zip(each.invars, map(number, equation.invars), strict=True))
                yield from walk(each)
                numbers.update(zip(equation.outvars, map(number, each.outvars), strict=True))
            if not inner:
                yield str(equation.params), *map(number, equation.invars), *map(number, equation.outvars)

    return list(walk(jax.make_jaxpr(f)(*arguments).jaxpr))


def around(family, lifted):
    """A function of plain arrays, which builds the model and calls."""
    return lambda arrays, *rest: lifted(family.make(*arrays), *rest)


@each_family
def test_a_lifted_scan_is_the_scan_written_by_hand(family):
    def step(model, carry, x):
        return carry + x, family.apply(model, x)

    lifted = around(family, lift.scan(step, in_axes=(None, Carry, 0)))

    def by_hand(arrays, carry, xs):
        return jax.lax.scan(lambda c, x: (c + x, affine(arrays, x)), carry, xs)

    assert program(lifted, weights(), X, XS) == program(by_hand, weights(), X, XS)


@each_family
def test_a_lifted_scan_over_layers_is_the_scan_written_by_hand(family):
    lifted = around(family, lambda model, x: lift.scan(lambda x, layer: (family.apply(layer, x), None), x, model))

    def by_hand(arrays, x):
        return jax.lax.scan(lambda x, layer: (affine(layer, x), None), x, arrays)

    assert program(lifted, weights(stack=(4,)), X) == program(by_hand, weights(stack=(4,)), X)


@each_family
def test_a_lifted_vmap_is_the_vmap_written_by_hand(family):
    for axes, arrays in ((0, weights(stack=(4,))), (None, weights())):
        lifted = around(family, lift.vmap(family.apply, in_axes=(axes, 0), out_axes=1))
        by_hand = jax.vmap(affine, in_axes=(axes, 0), out_axes=1)
        assert program(lifted, arrays, XS) == program(by_hand, arrays, XS)


@each_family
def test_a_lifted_gradient_is_the_gradient_written_by_hand(family):
    def flat(arrays, x):
        lifted = lift.value_and_grad(lambda model, x: family.apply(model, x).sum())
        loss, grads = lifted(family.make(*arrays), x)
        return loss, family.picked(grads)

    by_hand = jax.value_and_grad(lambda arrays, x: affine(arrays, x).sum())
    assert program(flat, weights(), X) == program(by_hand, weights(), X)


@each_family
def test_a_lifted_remat_is_the_remat_written_by_hand(family):
    policy = jax.checkpoint_policies.dots_saveable
    rematted = lift.remat(family.apply, policy=policy)

    def flat(arrays, x):
        return family.picked(lift.grad(lambda m, x: rematted(m, x).sum())(family.make(*arrays), x))

    by_hand = jax.grad(lambda arrays, x: jax.checkpoint(affine, policy=policy)(arrays, x).sum())
    assert equations(flat, weights(), X) == equations(by_hand, weights(), X)


@each_family
def test_a_lifted_jit_is_the_jit_written_by_hand(family):
    lifted = around(family, lambda m, x: lift.jit(family.apply)(m, x))
    assert equations(lifted, weights(), X) == equations(jax.jit(affine), weights(), X)


def test_a_counter_carried_through_a_scan_is_the_scan_written_by_hand():
    carried = lift.StateAxes({"batch_stat": Carry, ...: None})

    def lifted(count, xs):
        counter = Counter(count)
        ys = lift.scan(Counter.add, in_axes=(carried, 0), out_axes=0)(counter, xs)
        return counter.count.value, ys

    def by_hand(count, xs):
        return jax.lax.scan(lambda c, x: (c + x,) * 2, count, xs)

    assert program(lifted, jnp.float32(0), X) == program(by_hand, jnp.float32(0), X)


@each_family
def test_a_training_step_lowers_to_the_step_written_by_hand(family):
    def step(model, xs):
        loss, grads = lift.value_and_grad(lambda m: lift.vmap(family.apply, in_axes=(None, 0))(m, xs).mean())(model)
        state = jax.tree.map(lambda p, g: p - 0.1 * g, lift.state(model, "param"), grads)
        return lift.update(model, state), loss

    def by_hand(arrays, xs):
        loss, grads = jax.value_and_grad(lambda a: jax.vmap(affine, in_axes=(None, 0))(a, xs).mean())(arrays)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, arrays, grads)

    by_hand.__name__ = by_hand.__qualname__ = "step"
    lifted = lift.jit(step).lower(family.make(*weights()), XS)
    plain = jax.jit(by_hand).lower(weights(), XS)
    one, other = lifted.compile().cost_analysis(), plain.compile().cost_analysis()
    assert (one["flops"], one["bytes accessed"]) == (other["flops"], other["bytes accessed"])
    outputs = sorted(str(aval) for aval in jax.tree.leaves(lifted.out_info))
    assert outputs == sorted(str(aval) for aval in jax.tree.leaves(plain.out_info))


@each_family
def test_a_model_that_is_only_read_is_an_input_and_no_output(family):
    traced = lift.jit(family.apply).trace(family.make(*weights()), X)
    assert sorted(aval.shape for aval in traced.jaxpr.in_avals) == [(3,), (3,), (3, 3)]
    assert [aval.shape for aval in traced.jaxpr.out_avals] == [(3,)]


@each_family
def test_a_scan_stacks_no_broadcast_array_and_its_gradient_neither(family):
    def loss(model, xs):
        return lift.scan(lambda m, c, x: (c, family.apply(m, x)), in_axes=(None, Carry, 0))(model, 0.0, xs)[1].sum()

    def by_hand(arrays, xs):
        return jax.lax.scan(lambda c, x: (c, affine(arrays, x)), 0.0, xs)[1].sum()

    lifted = lift.jit(lift.grad(loss)).lower(family.make(*weights(size=3)), XS).compile().memory_analysis()
    plain = jax.jit(jax.grad(by_hand)).lower(weights(size=3), XS).compile().memory_analysis()
    assert lifted.temp_size_in_bytes == plain.temp_size_in_bytes
