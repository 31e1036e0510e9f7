"""What leaves a compiled program, and what a lifted function keeps alive."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import liftcore as lift
from tests.models import Affine, Counter, each_family, weights


@each_family
def test_a_large_buffer_that_is_only_read_is_no_output_of_the_compiled_program(family):
    large = family.make(jnp.ones((64, 64)), jnp.zeros(64))
    traced = lift.jit(family.apply).trace(large, jnp.ones(64))
    assert len(traced.jaxpr.out_avals) == 1
    memory = lift.jit(family.apply).lower(large, jnp.ones(64)).compile().memory_analysis()
    assert memory.output_size_in_bytes < 64 * 64 * 4


def test_only_what_was_written_is_an_output_and_all_of_a_donated_model_is():
    model = lift.Module()
    model.counter, model.affine = Counter(), Affine(*weights())

    def step(model):
        model.counter.add(1.0)

    assert len(lift.jit(step).trace(model).jaxpr.out_avals) == 1
    assert len(lift.jit(step, donate_argnums=0).trace(model).jaxpr.out_avals) == 3


def test_a_program_compiled_ahead_runs_and_updates_like_the_function():
    counter = Counter()
    compiled = lift.jit(lambda c, x: c.add(x)).lower(counter, jnp.asarray(1.0)).compile()
    assert float(counter.count.value) == 0.0
    assert [float(compiled(counter, jnp.asarray(x))) for x in (1.0, 2.0)] == [1.0, 3.0]
    other = Counter(5.0)
    assert float(compiled(other, jnp.asarray(2.0))) == 7.0
    assert (float(other.count.value), float(counter.count.value)) == (7.0, 3.0)


@each_family
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lift.jit(f),
        lambda f: lift.remat(f),
        lambda f: lift.vmap(f, in_axes=(None, 0)),
        lambda f: lift.grad(lambda m, x: f(m, x).sum(), argnums=1),
        lambda f: lift.scan(f, in_axes=(None, 0), out_axes=0),
    ],
    ids=["jit", "remat", "vmap", "grad", "scan"],
)
def test_a_call_keeps_no_array_of_its_arguments_alive_and_makes_no_cycle(family, transform):
    lifted = transform(family.apply)
    weight, bias = weights()
    model = family.make(weight, bias)
    lifted(model, jnp.ones((2, 3)))
    seen = weakref.ref(weight)
    gc.collect()
    gc.disable()
    try:
        lifted(model, jnp.ones((2, 3)))
        del model, weight, bias
        assert seen() is None
    finally:
        gc.enable()


def test_a_model_with_a_cycle_is_not_kept_alive_by_what_was_traced():
    lifted = lift.jit(lambda m, x: m.child(x))
    model = lift.Module()
    model.child = Affine(*weights())
    model.child.parent = model
    lifted(model, jnp.ones(3))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_a_dropped_function_drops_what_was_traced():
    array = jnp.ones(100)

    def f(x):
        return x + array

    seen = weakref.ref(f)
    lift.jit(f)(1.0)
    del f
    jax.clear_caches()
    gc.collect()
    assert seen() is None
