"""Plans and functions: one of several models, several of one, and what a function is bound to or captures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift


class _Scaled(lift.Module):
    def __init__(self, w: float, n: int) -> None:
        self.w = lift.Param(jnp.asarray(w))
        self.n = n
        self.others: list[Any] = []

    def apply(self, x: Any) -> Any:
        self.w.value = self.w.value + 1
        return self.w.value * x * self.n

    def __call__(self, x: Any) -> Any:
        return self.apply(x) + sum(other(x) for other in self.others)


class _Minus(_Scaled):
    def apply(self, x: Any) -> Any:
        return -super().apply(x)


@pytest.mark.parametrize("bind", [lambda model: model.apply, lambda model: model], ids=["method", "module"])
def test_what_a_function_is_bound_to_is_followed(bind: Callable[[Any], Any]) -> None:
    model, twin = _Scaled(1.0, 1), _Scaled(1.0, 1)
    step, plain = lift.jit(bind(model)), bind(twin)
    assert [float(step(3.0)) for _ in range(5)] == [float(plain(3.0)) for _ in range(5)]
    assert step.stats().planned >= 3
    changes: list[Callable[[Any], Any]] = [
        lambda m: setattr(m, "n", 2),
        lambda m: m.others.append(_Scaled(4.0, 1)),
        lambda m: m.others.clear(),
        lambda m: object.__setattr__(m, "__class__", _Minus),
    ]
    for change in changes:
        change(twin)
        change(model)
        assert [float(step(3.0)) for _ in range(3)] == [float(plain(3.0)) for _ in range(3)]
        assert float(lift.jit(bind(model))(3.0)) == float(bind(twin)(3.0))


def test_one_function_follows_two_models_of_different_structure() -> None:
    step = lift.jit(lambda model, x: model(x))
    models = [_Scaled(1.0, 1), _Scaled(2.0, 3), _Minus(3.0, 1)]
    models[1].others.append(models[0])
    twins = [lift.clone(model) for model in (models[0], models[2])]
    twins.insert(1, _Scaled(2.0, 3))
    twins[1].others.append(twins[0])
    for turn in range(6):
        for model, twin in zip(models, twins, strict=True):
            assert float(step(model, float(turn))) == float(twin(float(turn)))
    assert step.stats().planned >= 3 * 3
    for model, twin in zip(models, twins, strict=True):
        assert float(model.w.value) == float(twin.w.value)


def test_several_functions_on_one_model_see_what_each_other_does() -> None:
    model, twin = _Scaled(1.0, 1), _Scaled(1.0, 1)

    def grown(model: Any) -> None:
        model.others.append(_Scaled(2.0, 1))

    def scanned(model: Any, x: Any) -> Any:
        return model, model.w.value * x

    apply, renamed, grow = lift.jit(lambda m, x: m(x)), lift.remat(lambda m, x: m.apply(x)), lift.jit(grown)
    total = lift.grad(lambda m, x: m.w.value * x * m.n)
    loop = lift.scan(scanned, in_axes=(lift.Carry, 0))
    mapped = lift.vmap(lambda m, x: m.w.value * x, in_axes=(None, 0))
    for turn in range(12):
        if turn in (5, 9):
            grow(model)
            grown(twin)
        if turn == 7:
            model.n = twin.n = 2
        assert float(apply(model, 3.0)) == float(twin(3.0))
        assert float(renamed(model, 2.0)) == float(twin.apply(2.0))
        np.testing.assert_array_equal(total(model, 2.0)["w"], 2.0 * model.n)
        np.testing.assert_array_equal(loop(model, jnp.ones(2))[1], jnp.full(2, twin.w.value))
        np.testing.assert_array_equal(mapped(model, jnp.ones(2)), jnp.full(2, twin.w.value))
        assert len(model.others) == len(twin.others)
    for step in (apply, renamed, loop):
        assert step.stats().planned >= 4


class _Optimizer(lift.Module):
    def __init__(self, params: list[lift.Variable]) -> None:
        self.params = list(params)
        self.velocity = [lift.Variable(jnp.zeros_like(param.value)) for param in params]


def _train(model: _Scaled, optimizer: _Optimizer) -> Any:
    for param, velocity in zip(optimizer.params, optimizer.velocity, strict=True):
        velocity.value = velocity.value + 1
        param.value = param.value - velocity.value
    return model.w.value


def test_a_model_and_its_optimizer_that_share_and_then_do_not() -> None:
    model, step = _Scaled(1.0, 1), lift.jit(lambda model, optimizer: _train(model, optimizer))
    optimizer, wanted, velocity = _Optimizer([model.w]), 1.0, 0.0
    for _ in range(5):
        velocity += 1
        wanted -= velocity
        assert float(step(model, optimizer)) == float(model.w.value) == wanted
    assert step.stats().planned == 3
    kept, model.w = model.w, lift.Param(jnp.asarray(100.0))
    for _ in range(3):
        velocity += 1
        wanted -= velocity
        assert float(step(model, optimizer)) == float(model.w.value) == 100.0
        assert float(kept.value) == wanted, "the optimizer goes on with what it has"
    optimizer.params[0] = model.w
    for turn in range(3):
        velocity += 1
        assert float(step(model, optimizer)) == 100.0 - sum(velocity - back for back in range(turn + 1))
        assert float(kept.value) == wanted


_model: Any = None


def _of_a_global(x: Any) -> Any:
    return _model.w.value * x * _model.n + sum(other.w.value for other in _model.others)


def _expected(model: _Scaled) -> float:
    return float(model.w.value) * 3 * model.n + sum(float(other.w.value) for other in model.others)


@pytest.mark.parametrize("where", ["global", "closure", "default", "partial", "list"])
def test_what_a_function_captures_is_read_as_it_is_now(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, held = _Scaled(2.0, 1), [_Scaled(2.0, 1)]
    other = _Scaled(7.0, 2)

    def of(model: Any, x: Any) -> Any:
        return model.w.value * x * model.n + sum(one.w.value for one in model.others)

    def by_default(x: Any, model: Any = model) -> Any:
        return of(model, x)

    functions: dict[str, Callable[[Any], Any]] = {
        "global": lambda x: _of_a_global(x),
        "closure": lambda x: of(model, x),
        "default": by_default,
        "partial": functools.partial(of, model),
        "list": lambda x: of(held[0], x),
    }
    monkeypatch.setitem(globals(), "_model", model)
    step = lift.jit(functions[where])
    now = held[0] if where == "list" else model
    for turn in range(5):
        now.w.value = jnp.asarray(float(turn))
        assert float(step(3.0)) == _expected(now)
    if where != "list":  # what is in a list is searched in each call
        assert step.stats().planned == 3
    changes: list[Callable[[], Any]] = [
        lambda: setattr(now, "n", 4),
        lambda: object.__setattr__(now, "n", 5),
        lambda: setattr(now, "w", lift.Param(jnp.asarray(11.0))),
        lambda: now.others.append(_Scaled(1.0, 1)),
        lambda: now.others[0].w.__setitem__(..., jnp.asarray(5.0)),
        lambda: now.others.clear(),
    ]
    for change in changes:
        change()
        assert [float(step(3.0)) for _ in range(4)] == [_expected(now)] * 4
    if where == "global":
        monkeypatch.setitem(globals(), "_model", other)
    elif where == "list":
        held[0] = other
    elif where == "closure":
        model = other
    else:
        return
    assert [float(step(3.0)) for _ in range(4)] == [_expected(other)] * 4
