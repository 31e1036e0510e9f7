"""What plans count, and where else they are right. What they keep alive: `test_plans_memory.py`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift


class Leaf(lift.Module):
    def __init__(self) -> None:
        self.w = lift.Param(jnp.ones(3))
        self.other: Any = None


class Model(lift.Module):
    def __init__(self) -> None:
        self.child = Leaf()
        self.items = [Leaf()]


def _step(model: Model) -> Any:
    model.child.w.value = model.child.w.value + 1
    return model.child.w.value.sum()


def _planned(step: Any, *args: Any) -> None:
    for _ in range(4):
        step(*args)
    assert step.stats().planned > 0


def test_of_two_models_that_share_variables_each_is_freed() -> None:
    class Momentum(lift.Module):
        def __init__(self, model: Model) -> None:
            self.params = [model.child.w]
            self.velocity = lift.Variable(jnp.zeros(3))

    @lift.jit
    def step(model: Model, momentum: Momentum) -> None:
        momentum.velocity.value = momentum.velocity.value + model.child.w.value
        momentum.params[0].value = momentum.params[0].value - 1

    model = Model()
    momentum = Momentum(model)
    _planned(step, model, momentum)
    np.testing.assert_array_equal(model.child.w.value, jnp.full(3, -3.0))
    np.testing.assert_array_equal(momentum.velocity.value, jnp.full(3, 1.0 + 0.0 - 1.0 - 2.0))
    known = weakref.ref(momentum), weakref.ref(model)
    del momentum
    gc.collect()
    assert known[0]() is None
    del model
    gc.collect()
    assert known[1]() is None


def test_what_a_function_captures_is_freed_with_it() -> None:
    def made() -> list[weakref.ref[Any]]:
        model = Model()
        step = lift.jit(lambda x: model.child.w.value * x)
        for _ in range(4):
            np.testing.assert_array_equal(step(2.0), model.child.w.value * 2)
            model.child.w.value = model.child.w.value + 1
        assert step.stats().planned > 0
        return [weakref.ref(model), weakref.ref(step)]

    known = made()
    gc.collect()
    assert [one() for one in known] == [None, None]


def test_a_training_loop_traces_once_and_goes_by_a_plan() -> None:
    model, step = Model(), lift.jit(lambda model, x: (_step(model), x))
    for _ in range(10):
        step(model, jnp.ones(2))
    assert step.stats() == (10, 8, 1, 1, 1)
    step(model, jnp.ones(3))
    for _ in range(4):
        step(model, jnp.ones(2))
        step(model, jnp.ones(3))
    assert step.stats() == (19, 16, 2, 2, 2)
    step.clear_cache()
    assert step.stats() == (0, 0, 0, 0, 0)


def test_an_equinox_loop_traces_once_and_goes_by_a_plan() -> None:
    step = lift.jit(lambda model: jax.tree.map(lambda x: x + 1 if eqx.is_array(x) else x, model))
    model = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    activation = model.activation
    for _ in range(10):
        model = step(model)
    assert step.stats().traces == 1
    assert step.stats().planned >= 8
    assert model.activation is activation


def test_rebuilt_models_do_not_trace() -> None:
    step = lift.jit(lambda model: _step(model))
    for _ in range(5):
        model = Model()
        model.child.other = lambda x: x + 1
        step(model)
    assert step.stats().traces == 1


def test_an_eager_scan_traces_once() -> None:
    model = Model()
    loop = lift.scan(lambda model, x: (model, model.child.w.value * x), in_axes=(lift.Carry, 0))
    for _ in range(6):
        loop(model, jnp.ones((2, 3)))
    assert (loop.stats().traces, loop.stats().planned) == (1, 4)


@pytest.mark.parametrize(
    "lifted",
    [
        lambda f: lift.vmap(f, in_axes=(None, 0)),
        lambda f: lift.grad(lambda model, x: f(model, x).sum()),
    ],
)
def test_what_traces_at_each_call_does_so_once_a_call(lifted: Callable[[Any], Any]) -> None:
    model, runs = Model(), 0

    def body(model: Model, x: Any) -> Any:
        nonlocal runs
        runs += 1
        return model.child.w.value * x

    step = lifted(body)
    for _ in range(8):
        step(model, jnp.ones((2, 3)))
    assert runs == step.stats().traces == 8


def test_a_captured_model_may_become_another() -> None:
    models = {"now": Model()}
    model = models["now"]
    step = lift.jit(lambda x: model.child.w.value.sum() + x)
    _planned(step, 1.0)
    model = Model()
    model.child.w.value = jnp.full(3, 10.0)
    assert float(step(1.0)) == 31.0
    model.child = Leaf()
    assert float(step(1.0)) == 4.0


def test_a_captured_model_that_another_function_knows_anew_is_not_what_a_plan_knew() -> None:
    model = Model()
    model.factor = 2
    one = lift.jit(lambda x: model.child.w.value.sum() * model.factor + x)
    other = lift.jit(lambda x: model.child.w.value.sum() * x)
    _planned(one, 1.0)
    _planned(other, 1.0)
    total = float(model.child.w.value.sum())
    assert float(one(1.0)) == total * 2 + 1
    model.factor = 3
    for _ in range(6):
        other(1.0)
    assert float(one(1.0)) == total * 3 + 1


def test_a_plan_is_not_followed_where_something_is_traced() -> None:
    model, step = Model(), lift.jit(lambda model: _step(model))
    _planned(step, model)
    with pytest.raises(lift.errors.WriteError):
        jax.jit(lambda x: step(model) + x)(1.0)
    with jax.disable_jit():
        assert float(step(model)) == 18.0
    jax.clear_caches()
    assert float(step(model)) == 21.0


def test_equinox_modules_and_trees_that_differ_are_told_apart() -> None:
    class Net(eqx.Module):
        layers: list[Any]
        k: Any = eqx.field(static=True)

    def apply(tree: Any) -> tuple[Any, str]:
        words = type(tree.k).__name__ if isinstance(tree, Net) else str(jax.tree.structure(tree))
        return jax.tree.map(lambda x: jnp.asarray(x) * 2, tree), words

    step = lift.jit(apply)
    net = Net([{"w": jnp.ones(2)}], 1)
    trees: list[Any] = [net, Net(net.layers, True), Net(net.layers, 1.0), Net([*net.layers, jnp.ones(3)], 1)]
    x = jnp.ones(2)
    trees += [
        {"a": x, "b": x},
        {"b": x, "a": x},
        {"a": x},
        {"a": None},
        {"a": 2.0},
        {"a": np.ones(2)},
        [x],
        (x,),
        {1: x},
    ]
    for tree in [*trees, *trees, *trees]:
        found, words = step(tree)
        wanted, right = apply(tree)
        assert words == right
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert step.stats().planned > len(trees)
    net.layers.append(jnp.zeros(1))
    assert len(step(net)[0].layers) == 2


def test_donated_buffers_are_used_again() -> None:
    model = Model()
    step = lift.jit(lambda model: _step(model), donate_argnums=0)
    for _ in range(6):
        old = model.child.w.value
        step(model)
        assert old.is_deleted()
    assert step.stats().planned == 4
    np.testing.assert_array_equal(model.child.w.value, jnp.full(3, 7.0))


def test_threads_call_one_function_on_their_own_models() -> None:
    step = lift.jit(lambda model: _step(model))
    models = [Model() for _ in range(4)]
    start = threading.Barrier(4)

    def run(model: Model, restructured: bool) -> None:
        start.wait()
        for turn in range(30):
            if restructured and turn % 5 == 0:
                model.items.append(Leaf())
            step(model)

    threads = [threading.Thread(target=run, args=(model, index == 3)) for index, model in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        np.testing.assert_array_equal(model.child.w.value, jnp.full(3, 31.0))
    assert len(models[3].items) == 7
