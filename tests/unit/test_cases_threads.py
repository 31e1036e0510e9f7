"""Lifted functions serve several threads at once, their first compilation included."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.models import Affine, Config, Counter, each_family, weights
from tests.threads import in_threads


@each_family
def test_two_threads_race_on_the_first_compilation_of_one_function(family):
    for _ in range(10):
        lifted = lift.jit(lambda m, x: family.apply(m, x))
        models = [family.make(*weights(seed)) for seed in range(2)]
        results = in_threads(*(functools.partial(lifted, m, jnp.ones(3)) for m in models))
        for result, model in zip(results, models, strict=True):
            np.testing.assert_allclose(result, family.apply(model, jnp.ones(3)), rtol=1e-6)


def several(lifted, model):
    for _ in range(5):
        lifted(model)


RACES = {
    "jit": lambda f: lift.jit(f),
    "scan": lambda f: lambda m: lift.scan(lambda m, x: (m, f(m)), m, jnp.arange(1))[1][0],
    "vmap": lambda f: lift.vmap(f, in_axes=None, out_axes=None, axis_size=2),
    "grad": lambda f: lambda m: lift.grad(lambda x, m: (x, f(m)), has_aux=True)(1.0, m)[1],
}


@pytest.mark.parametrize("transform", RACES.values(), ids=RACES)
def test_each_thread_updates_its_own_model_and_keeps_its_own_config(transform):
    class Configured(Counter):
        def __init__(self, start):
            super().__init__(np.float32(start))
            self.config = Config()

    for _ in range(5):

        def step(m):
            m.last = m.config
            return m.add(1.0)

        def warm(m):
            return m.add(1.0)

        lifted = transform(warm if transform is RACES["scan"] else step)
        models = [Configured(10.0), Configured(20.0)]
        configs = [model.config for model in models]
        in_threads(*(functools.partial(several, lifted, m) for m in models))
        assert [float(model.count.value) for model in models] == [15.0, 25.0]
        for model, config in zip(models, configs, strict=True):
            assert model.config is config
            assert getattr(model, "last", config) is config


def test_two_threads_that_read_one_captured_model_see_its_value():
    teacher = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    own = Affine(*weights())
    for _ in range(5):
        lifted = lift.jit(lambda x: (teacher(x), own(x)))
        for result in in_threads(*[functools.partial(lifted, jnp.ones(3))] * 2):
            np.testing.assert_allclose(result[0], teacher(jnp.ones(3)), rtol=1e-6)
            np.testing.assert_allclose(result[1], own(jnp.ones(3)), rtol=1e-6)
        own.weight.value = own.weight.value * 2
        np.testing.assert_allclose(lifted(jnp.ones(3))[1], own(jnp.ones(3)), rtol=1e-6)
