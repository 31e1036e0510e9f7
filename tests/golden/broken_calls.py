"""Cases about calls: arguments, prefixes, axes, carries, losses, and what JAX itself refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import liftcore as lift
from liftcore import Carry
from tests.golden.broken import Programs, broken
from tests.models import Affine, Counter, weights

X = jnp.ones((3, 4))
ROW = jnp.ones(3)


def add(x, y):
    return x + y


@broken
def too_many_arguments() -> Programs:
    yield lambda: lift.jit(add)(X, X, X)


@broken
def an_unknown_keyword() -> Programs:
    yield lambda: lift.vmap(add)(X, z=X)


@broken
def too_few_axes() -> Programs:
    yield lambda: lift.vmap(add, in_axes=(0,))(X, X)
    yield lambda: lift.vmap(add, in_axes=(0, 0))(X, X)
    yield lambda: lift.vmap(add, in_axes={"x": 0})(X, X)


@broken
def too_many_axes_for_a_bound_method() -> Programs:
    model = Affine(jnp.ones((4, 4)), jnp.ones(4))
    yield lambda: lift.vmap(model.decode, in_axes=(None, 0))(X)
    yield lambda: lift.vmap(model.decode, in_axes=(0,))(X)
    yield lambda: lift.vmap(model.decode, in_axes={"x": 0})(X)


@broken
def an_axis_for_no_argument() -> Programs:
    yield lambda: lift.vmap(add, in_axes={"z": None})(X, X)


@broken
def another_container_in_the_axes() -> Programs:
    def step(batch):
        return batch["inputs"]["x"]

    batch = {"inputs": {"x": X}}
    yield lambda: lift.vmap(step, in_axes=({"inputs": [0]},))(batch)
    yield lambda: lift.vmap(step, in_axes=({"inputs": 0},))(batch)
    yield lambda: lift.vmap(step, in_axes=({"inputs": {"x": 0}},))(batch)


@broken
def axes_below_an_object() -> Programs:
    def step(model):
        return model.count.value

    counter = Counter(ROW)
    yield lambda: lift.vmap(step, in_axes=({"count": 0},))(counter)
    yield lambda: lift.vmap(step, in_axes=(lift.StateAxes({"batch_stat": 0, ...: None}),))(counter)


@broken
def an_axis_that_is_no_number() -> Programs:
    yield lambda: lift.vmap(add, in_axes=(0, "1"))(X, X)
    yield lambda: lift.vmap(add, in_axes=(0, 0))(X, X)


@broken
def an_out_axis_that_is_no_number() -> Programs:
    yield lambda: lift.vmap(add, out_axes=0.5)(X, X)
    yield lambda: lift.vmap(add, out_axes=1)(X, X)


@broken
def an_axis_that_is_not_there() -> Programs:
    def step(batch, y):
        return batch["x"] + y

    yield lambda: lift.vmap(step, in_axes=(2, 0))({"x": X}, X)
    yield lambda: lift.vmap(step, in_axes=(0, 0))({"x": X}, X)
    yield lambda: lift.vmap(step, in_axes=(None, 0))({"x": X[0]}, X)


@broken
def an_out_axis_that_is_not_there() -> Programs:
    yield lambda: lift.vmap(add, out_axes=2)(X, X)
    yield lambda: lift.vmap(add, out_axes=1)(X, X)


@broken
def two_lengths() -> Programs:
    yield lambda: lift.vmap(add)(X, X[:2])
    yield lambda: lift.vmap(add, in_axes=(0, None))(X, X[0])


@broken
def another_length_than_was_asked_for() -> Programs:
    def step(carry, x):
        return carry + x, None

    yield lambda: lift.scan(step, jnp.zeros(4), X, length=5)
    yield lambda: lift.scan(step, jnp.zeros(4), X, length=3)


@broken
def nothing_tells_the_length_of_a_vmap() -> Programs:
    yield lambda: lift.vmap(add, in_axes=None)(X, X)
    yield lambda: lift.vmap(add, in_axes=None, axis_size=2)(X, X)


@broken
def nothing_tells_the_length_of_a_scan() -> Programs:
    def step(carry, x):
        return carry, None

    yield lambda: lift.scan(step, 0.0, None)
    yield lambda: lift.scan(step, 0.0, None, length=2)


@broken
def an_output_without_an_axis_that_differs_from_lane_to_lane() -> Programs:
    def step(x):
        return {"loss": x.sum(), "x": x}

    yield lambda: lift.vmap(step, out_axes={"loss": None, "x": 0})(X)
    yield lambda: lift.vmap(step, out_axes=0)(X)
    yield lambda: lift.vmap(
        lambda x: {"loss": jax.lax.pmean(x.sum(), "batch")}, out_axes={"loss": None}, axis_name="batch"
    )(X)


@broken
def an_output_of_a_scan_without_an_axis() -> Programs:
    def step(carry, x):
        return carry, x

    yield lambda: lift.scan(step, out_axes=(Carry, None))(0.0, X)
    yield lambda: lift.scan(step, out_axes=(Carry, 0))(0.0, X)


@broken
def another_container_in_the_out_axes() -> Programs:
    def step(x):
        return {"y": (x, x)}

    yield lambda: lift.vmap(step, out_axes={"y": (0, 0, 0)})(X)
    yield lambda: lift.vmap(step, out_axes={"y": (0, 0)})(X)
    yield lambda: lift.vmap(step, out_axes={"y": 0})(X)


@broken
def a_carry_that_does_not_leave() -> Programs:
    yield lambda: lift.scan(add, in_axes=(Carry, 0), out_axes=0)(jnp.zeros(4), X)
    yield lambda: lift.scan(lambda x, y: (x + y, None), in_axes=(Carry, 0), out_axes=(Carry, 0))(jnp.zeros(4), X)


@broken
def a_step_that_returns_no_pair() -> Programs:
    yield lambda: lift.scan(add, jnp.zeros(4), X)
    yield lambda: lift.scan(lambda x, y: (x + y, None), jnp.zeros(4), X)


@broken
def a_spelling_that_belongs_to_another_transform() -> Programs:
    yield lambda: lift.vmap(add, in_axes=(Carry, 0))(X, X)
    yield lambda: lift.vmap(add, in_axes=(None, 0))(X[0], X)


@broken
def a_lift_type_that_belongs_to_another_transform() -> Programs:
    yield lambda: lift.vmap(add, in_axes=(lift.DiffState(0, "param"), 0))(X, X)
    yield lambda: lift.grad(lambda x, y: add(x, y).sum(), argnums=lift.DiffState(0, "param"))(X, X)
    yield lambda: lift.vmap(add, in_axes=(lift.StateAxes({"param": 0, ...: None}), 0))(X, X)


@broken
def a_leaf_that_no_filter_matches() -> Programs:
    def step(model):
        return model.count.value

    yield lambda: lift.vmap(step, in_axes=lift.StateAxes({"param": 0}))(Counter(ROW))
    yield lambda: lift.vmap(step, in_axes=lift.StateAxes({"param": 0, ...: None}), axis_size=2)(Counter(ROW))


@broken
def nothing_differentiable() -> Programs:
    def loss(n, x):
        return (n * x).sum()

    yield lambda: lift.grad(loss)(jnp.arange(3), ROW)
    yield lambda: lift.grad(loss, argnums=1)(jnp.arange(3), ROW)


@broken
def one_argument_selected_twice() -> Programs:
    def loss(model):
        return model(ROW).sum()

    f, g = lift.PathContains("weight"), lift.PathContains("bias")
    model = Affine(*weights())
    yield lambda: lift.grad(loss, argnums=(lift.DiffState(0, f), lift.DiffState(0, g)))(model)
    yield lambda: lift.grad(loss, argnums=lift.DiffState(0, lift.Any(f, g)))(model)


@broken
def an_argument_number_that_is_not_there() -> Programs:
    yield lambda: lift.grad(add, argnums=2)(1.0, 2.0)
    yield lambda: lift.grad(add, argnums=1)(1.0, 2.0)
    yield lambda: lift.grad(add, argnums="y")(1.0, 2.0)


@broken
def a_static_argument_that_is_not_there() -> Programs:
    yield lambda: lift.jit(add, static_argnames=("y", "n"))(1.0, 2.0)
    yield lambda: lift.jit(add, static_argnames="y")(1.0, 2.0)


@broken
def a_loss_that_is_no_number() -> Programs:
    yield lambda: lift.grad(add)(X, X)
    yield lambda: lift.grad(lambda x, y: add(x, y).mean())(X, X)
    yield lambda: lift.grad(lambda x, y: (add(x, y).mean(), add(x, y)), has_aux=True)(X, X)


@broken
def a_loss_that_is_no_array() -> Programs:
    yield lambda: lift.value_and_grad(lambda x: {"loss": x.sum()})(X)
    yield lambda: lift.value_and_grad(lambda x: x.sum())(X)


@broken
def a_loss_that_is_an_integer() -> Programs:
    def loss(x):
        return (x > 0).sum()

    yield lambda: lift.grad(loss)(ROW)
    yield lambda: lift.grad(lambda x: (x > 0).sum() * 1.0 + x.sum())(ROW)


@broken
def no_auxiliary_output() -> Programs:
    def loss(x):
        return x.sum()

    yield lambda: lift.grad(loss, has_aux=True)(X)
    yield lambda: lift.grad(loss)(X)
    yield lambda: lift.grad(lambda x: (x.sum(), None), has_aux=True)(X)


@broken
def a_traced_flag_in_python() -> Programs:
    def step(x, training=True):
        return x if training else -x

    yield lambda: lift.jit(step)(X, training=True)
    yield lambda: lift.jit(step, static_argnames="training")(X, training=True)


@broken
def a_traced_element_of_an_argument_in_python() -> Programs:
    def step(batch):
        return batch["x"] if batch["flags"][0] else -batch["x"]

    yield lambda: lift.jit(step)({"x": X, "flags": [True]})


@broken
def an_argument_that_jax_does_not_take() -> Programs:
    yield lambda: lift.jit(add)(X, jax.ShapeDtypeStruct((3, 4), jnp.float32))
