"""Plans serve several threads at once: each call goes by what its own arguments are at that time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.models import Affine, Counter, weights
from tests.threads import in_threads

_TURNS = 30


def _several(step: Callable[[Any], Any], model: Any) -> list[float]:
    return [float(step(model)) for _ in range(_TURNS)]


def _counted(start: float) -> list[float]:
    return [start + turn for turn in range(1, _TURNS + 1)]


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: lift.jit(f),
    "donated": lambda f: lift.jit(f, donate_argnums=0),
    "remat": lambda f: lift.remat(f),
}
_each_transform = pytest.mark.parametrize("transform", _TRANSFORMS.values(), ids=_TRANSFORMS)


@_each_transform
def test_two_threads_update_their_own_models(transform: Callable[[Any], Any]) -> None:
    step = transform(lambda counter: counter.add(1.0))
    models = [Counter(np.float32(start)) for start in (10, 50)]
    results = in_threads(*(functools.partial(_several, step, model) for model in models))
    assert results == [_counted(10), _counted(50)]
    assert step.stats().calls == 2 * _TURNS
    assert step.stats().planned > _TURNS
    assert step.stats().traces == 1


def test_two_threads_hand_their_own_equinox_modules_on() -> None:
    class Tree(eqx.Module):
        count: jax.Array
        name: str

    @lift.jit
    def step(tree: Tree) -> Tree:
        return Tree(tree.count + len(tree.name), tree.name)

    def run(name: str) -> tuple[float, str]:
        tree = Tree(jnp.zeros(()), name)
        for _ in range(_TURNS):
            tree = step(tree)
        return float(tree.count), tree.name

    results = in_threads(functools.partial(run, "a"), functools.partial(run, "bb"))
    assert results == [(_TURNS, "a"), (2 * _TURNS, "bb")]
    assert step.stats().planned > _TURNS
    assert step.stats().traces == 2


@_each_transform
def test_a_race_on_the_first_call_traces_once_and_both_get_plans(transform: Callable[[Any], Any]) -> None:
    for _ in range(10):
        step = transform(lambda counter: counter.add(1.0))
        models = [Counter(np.float32(start)) for start in range(3)]
        results = in_threads(*(functools.partial(step, model) for model in models))
        assert list(map(float, results)) == [1.0, 2.0, 3.0]
        assert step.stats().traces == 1
        for model in models:
            step(model)
            before = step.stats().planned
            step(model)
            assert step.stats().planned == before + 1


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
def test_two_functions_read_one_model(captured: bool) -> None:
    model, x = Affine(*weights()), jnp.ones(3)
    functions: list[Callable[..., Any]] = [lambda model, x: model(x), lambda model, x: model(2 * x)]
    if captured:
        functions = [lambda _, x: model(x), lambda _, x: model(2 * x)]
    steps = [lift.jit(function) for function in functions]

    def run(step: Any) -> list[Any]:
        return [step(None if captured else model, x) for _ in range(_TURNS)]

    results = in_threads(*(functools.partial(run, step) for step in steps))
    for result, right in zip(results, (model(x), model(2 * x)), strict=True):
        np.testing.assert_allclose(result, np.broadcast_to(right, (_TURNS, 3)), rtol=1e-6)
    for step in steps:
        assert step.stats().planned > 0
        assert step.stats().traces == 1


def test_two_threads_read_one_model_by_one_function() -> None:
    model, x = Affine(*weights()), jnp.ones(3)
    step = lift.jit(lambda model, x: model(x))

    def run() -> list[Any]:
        return [step(model, x) for _ in range(_TURNS)]

    for result in in_threads(run, run):
        np.testing.assert_allclose(result, np.broadcast_to(model(x), (_TURNS, 3)), rtol=1e-6)
    assert step.stats().planned > 0
    assert step.stats().traces == 1


def _attribute(model: Any, turn: int) -> None:
    model.name = str(turn % 3)


def _in_vars(model: Any, turn: int) -> None:
    vars(model)["name"] = str(turn % 3)


def _part(model: Any, turn: int) -> None:
    model.part = Counter(np.float32(turn))


def _list(model: Any, turn: int) -> None:
    (model.parts.append if len(model.parts) < 3 else model.parts.remove)(model.parts[0])


@pytest.mark.parametrize("change", [_attribute, _in_vars, _part, _list])
def test_one_thread_changes_its_model_while_another_calls(change: Callable[[Any, int], None]) -> None:
    def make() -> Any:
        model = lift.Module()
        model.count, model.part = Counter(np.float32(0)), Counter(np.float32(0))
        model.name, model.parts = "0", [Counter(np.float32(1))]
        return model

    def value(model: Any) -> Any:
        return model.part.count.value + sum(part.count.value for part in model.parts) + float(model.name)

    @lift.jit
    def step(model: Any) -> Any:
        model.count.add(1.0)
        return value(model)

    changing, quiet = make(), make()

    def run_changing() -> None:
        for turn in range(_TURNS):
            change(changing, turn)
            for _ in range(3):
                assert float(step(changing)) == float(value(changing))

    def run_quiet() -> None:
        for turn in range(3 * _TURNS):
            assert float(step(quiet)) == 1.0
            assert float(quiet.count.count.value) == turn + 1

    in_threads(run_changing, run_quiet)
    assert float(changing.count.count.value) == float(quiet.count.count.value) == 3 * _TURNS
    assert step.stats().calls == 6 * _TURNS
    assert step.stats().planned > _TURNS


def test_a_cache_is_cleared_while_another_thread_calls() -> None:
    step, counter = lift.jit(lambda counter: counter.add(1.0)), Counter(np.float32(0))

    def clear() -> None:
        for _ in range(_TURNS):
            step.clear_cache()

    _, result = in_threads(clear, functools.partial(_several, step, counter))
    assert result == _counted(0)
    _several(step, counter)
    before = step.stats()
    assert float(step(counter)) == 2 * _TURNS + 1
    assert step.stats().planned == before.planned + 1
    assert step.stats().traces <= 1


def test_an_error_in_one_thread_is_no_error_of_another() -> None:
    @lift.jit
    def step(counter: Counter, x: Any) -> Any:
        counter.add(1.0)
        if x.ndim:
            raise KeyError(x.shape)
        return counter.count.value

    failing, right = Counter(np.float32(0)), Counter(np.float32(0))

    def fail() -> None:
        for turn in range(1, _TURNS):
            step(failing, jnp.zeros(()))
            with pytest.raises(KeyError):
                step(failing, jnp.zeros(turn % 3 + 1))

    _, result = in_threads(fail, functools.partial(_several, lambda counter: step(counter, jnp.zeros(())), right))
    assert result == _counted(0)
    assert float(failing.count.value) == _TURNS - 1
    assert step.stats().planned > _TURNS
