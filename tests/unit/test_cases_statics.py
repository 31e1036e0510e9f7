"""Static values and raw arrays in models: changed and carried out, kept with their own model, never around an array."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore.errors import LiftWarning, StaticError
from tests.models import Affine, Config, Counter, Net, both_ways, weights


def test_all_four_kinds_of_change_arrive_and_settle_after_the_second_trace():
    model, traces = Counter(), []
    model.buffer = jnp.ones(2)
    model.count.set_metadata(note="old")

    @lift.jit
    def step(model):
        traces.append(1)
        model.buffer = model.buffer * 2
        model.extra = lift.Variable(jnp.ones(()))
        model.flag = 3
        model.count.set_metadata(note="new")

    for times in (1, 2, 3):
        step(model)
        np.testing.assert_array_equal(model.buffer, jnp.full(2, 2.0**times))
        assert (float(model.extra.value), model.flag, model.count.metadata["note"]) == (1.0, 3, "new")
    assert len(traces) == 2


def test_a_raw_array_attribute_written_on_every_call_is_traced_once():
    model, traces = Counter(), []
    model.buffer = jnp.ones(2)

    @lift.jit
    def step(model):
        traces.append(1)
        model.buffer = model.buffer * 2

    for _ in range(3):
        step(model)
    np.testing.assert_array_equal(model.buffer, jnp.full(2, 8.0))
    assert len(traces) == 1


def test_a_static_number_changed_on_every_call_warns_and_names_the_attribute():
    model = Counter()
    model.steps = 0

    @lift.jit
    def step(model):
        model.steps = model.steps + 1

    def often():
        for _ in range(8):
            step(model)

    with pytest.warns(LiftWarning, match=r"jit of step: model\.steps"):
        often()
    assert model.steps == 8


def test_a_static_value_that_settles_does_not_warn():
    model = Counter()

    @lift.jit
    def step(model):
        model.flag = True

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            step(model)


@both_ways
@pytest.mark.parametrize("where", ["attribute", "metadata"])
@pytest.mark.parametrize("transform", ["jit", "vmap", "grad", "remat"])
def test_a_static_value_that_holds_a_traced_array_is_an_error_that_names_the_path(how, where, transform):
    @dataclasses.dataclass(frozen=True)
    class Held:
        array: object

    def bad(model, x):
        if where == "attribute":
            model.net.held = Held(x * 2)
        else:
            model.weight.set_metadata(held=Held(x * 2))
        return x.sum()

    tree = Counter()
    tree.net, tree.weight = Net(), lift.Param(jnp.ones(()))
    structure = lift.split(tree)[0]
    lifted = {
        "jit": lift.jit,
        "vmap": lambda f: lift.vmap(f, in_axes=(None, 0)),
        "grad": lambda f: lift.grad(f, argnums=1),
        "remat": lift.remat,
    }[transform](bad)
    path = r"model\.net\.held" if where == "attribute" else r"model\.weight\.metadata"
    with pytest.raises(StaticError, match=f"^{transform} of bad: {path}"):
        how(lambda m, x: lifted(m, x))(tree, jnp.ones(2))
    assert lift.split(tree)[0] == structure


@both_ways
def test_configs_of_two_equal_models_stay_with_their_own_model(how):
    @lift.jit
    def step(model):
        model.last = model.config
        model.seen = True
        model.sub = Counter()
        model.sub.config = model.config

    def make():
        model = Affine(*weights())
        model.config = Config(5)
        return model

    models = [make() for _ in range(3)]
    configs = [model.config for model in models]
    for model in models:
        how(lambda m: step(m))(model)
    for model, config in zip(models, configs, strict=True):
        assert model.config is config
        assert model.last is config
        assert model.sub.config is config


@both_ways
@pytest.mark.parametrize("static", [jnp.tanh, "text", Config(7)], ids=["function", "string", "config"])
def test_a_scan_carries_a_module_that_holds_a_static_value(how, static):
    class Recurrent(eqx.Module):
        weight: jax.Array
        extra: object

        def __call__(self, x):
            return x * self.weight

    own = Counter(2.0)
    own.extra = static
    tree = Recurrent(jnp.asarray(2.0), static)
    _, ys = how(lambda m: lift.scan(lambda c, x: (c, c(x)), m, jnp.arange(3.0)))(tree)
    np.testing.assert_array_equal(ys, [0, 2, 4])
    _, ys = how(lambda m: lift.scan(lambda c, x: (c, c.add(x)), m, jnp.arange(3.0)))(own)
    np.testing.assert_array_equal(ys, [2, 3, 5])
    plain, ys = how(lambda m: lift.scan(lambda c, x: (c, c["w"] * x), m, jnp.arange(3.0)))(
        {"w": jnp.asarray(2.0), "extra": static}
    )
    np.testing.assert_array_equal(ys, [0, 2, 4])
    assert plain["extra"] is static
