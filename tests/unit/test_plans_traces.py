"""Planned calls that trace: those of eager transforms, and those whose program JAX has forgotten or cannot use."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.property.reports import assert_same, report
from tests.threads import in_threads


class _Model(lift.Module):
    """Every variable has an axis to be mapped over."""

    def __init__(self) -> None:
        self.weight = lift.Param(jnp.arange(1.0, 3.0))
        self.count = lift.BatchStat(jnp.zeros(2))
        self.items = [lift.Param(jnp.ones(2))]
        self.n = 1


class _Boom(Exception):
    """Raised by the user."""


@dataclasses.dataclass
class _World:
    """A model, and what the function does to it that no argument tells of."""

    model: Any = dataclasses.field(default_factory=_Model)
    x: Any = dataclasses.field(default_factory=lambda: jnp.arange(2.0))
    cell: lift.Variable = dataclasses.field(default_factory=lambda: lift.Variable(jnp.asarray(2.0)))
    does: frozenset[str] = frozenset(["write"])
    outer: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = lambda f: f
    runs: int = 0

    def work(self, model: Any, x: Any) -> Any:
        """What is lifted."""
        self.runs += 1
        if "write" in self.does:
            model.count.value = model.count.value + x.sum()
        if "set" in self.does:
            model.extra, model.n, model.raw = lift.Param(model.count.value * 2), model.n + 1, model.count.value
        if "grow" in self.does:
            model.items.append(lift.Param(model.weight.value + 1))
        if "note" in self.does:
            model.weight.set_metadata(note=model.n)
        if "raise" in self.does:
            raise _Boom
        if "branch" in self.does and x.sum() > 0:
            model.n = 5
        y = model.weight.value * model.n * x.astype(jnp.float32).sum()
        if "capture" in self.does:
            y = y * self.cell.value
        return (y + sum(item.value for item in model.items)).sum()


def _scan(f: Callable[..., Any]) -> Any:
    return lift.scan(lambda m, y: (m, f(m, y)), in_axes=(lift.Carry, 0))


_TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jit": lambda f: lift.jit(f),
    "remat": lambda f: lift.remat(f),
    "value_and_grad": lambda f: lift.value_and_grad(f),
    "vmap": lambda f: lift.vmap(f, in_axes=(0, 0)),
    "scan": _scan,
    "donated": lambda f: lift.jit(f, donate_argnums=0),
    "grad of x": lambda f: lift.grad(f, argnums=1),
    "vmap of grad": lambda f: lift.vmap(lift.grad(f), in_axes=(0, 0)),
}

# JAX keeps no trace of these.
_TRACED_EACH_TIME = ("value_and_grad", "vmap", "grad of x", "vmap of grad")
_each_transform = pytest.mark.parametrize("transform", _TRANSFORMS)
_each_traced = pytest.mark.parametrize("transform", _TRACED_EACH_TIME)

_Event = Callable[[_World], contextlib.AbstractContextManager[None]]


def _doing(*what: str) -> _Event:
    """The function does something else, where JAX has to trace it to run it."""

    @contextlib.contextmanager
    def event(world: _World) -> Iterator[None]:
        before, world.does = world.does, world.does | {*what}
        with jax.default_matmul_precision("float32"):
            yield
        world.does = before

    return event


def _with_x(make: Callable[[], Any]) -> _Event:
    @contextlib.contextmanager
    def event(world: _World) -> Iterator[None]:
        before, world.x = world.x, make()
        yield
        world.x = before

    return event


def _with(put: Callable[[_Model, Any], None], make: Callable[[], Any], usual: Callable[[], Any]) -> _Event:
    @contextlib.contextmanager
    def event(world: _World) -> Iterator[None]:
        put(world.model, make())
        yield
        put(world.model, usual())

    return event


def _with_value(make: Callable[[], Any]) -> _Event:
    return _with(lambda model, new: setattr(model.weight, "value", new), make, lambda: jnp.ones(2))


def _with_attribute(value: Any) -> _Event:
    return _with(lambda model, new: setattr(model, "n", new), lambda: value, lambda: 1)


@contextlib.contextmanager
def _without_jit(world: _World) -> Iterator[None]:
    with jax.disable_jit():
        yield


@contextlib.contextmanager
def _all_forgotten(world: _World) -> Iterator[None]:
    jax.clear_caches()  # type: ignore[no-untyped-call]
    yield
    jax.clear_caches()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _within_plain_jit(world: _World) -> Iterator[None]:
    before, world.does, world.outer = world.does, frozenset(), jax.jit
    with jax.default_matmul_precision("float32"):
        yield
    world.does, world.outer = before, lambda f: f


_EVENTS: dict[str, _Event] = {
    "another shape": _with_x(lambda: jnp.ones((2, 3))),
    "a refused shape": _with_x(lambda: jnp.ones(())),
    "another dtype": _with_x(lambda: jnp.arange(2)),
    "NumPy": _with_x(lambda: np.ones(2, np.float32)),
    "a value of another shape": _with_value(lambda: jnp.ones((2, 1))),
    "a value of another dtype": _with_value(lambda: jnp.ones(2, jnp.bfloat16)),
    "a value that cannot be differentiated": _with_value(lambda: jnp.ones(2, jnp.int32)),
    "a value of NumPy": _with_value(lambda: np.ones(2, np.float32)),
    "a value of a weak type": _with_value(lambda: jnp.asarray([1, 1]) * 1.0),
    "another static value": _with_attribute(3),
    "True for 1": _with_attribute(True),
    "a new trace": _doing(),
    "attributes set": _doing("set"),
    "a list longer": _doing("grow"),
    "metadata": _doing("note"),
    "an error": _doing("raise"),
    "an error after everything": _doing("set", "grow", "note", "raise"),
    "Python wants a value": _doing("set", "branch"),
    "a captured variable": _doing("capture"),
    "within plain jit": _within_plain_jit,
    "no jit": _without_jit,
    "all forgotten": _all_forgotten,
}
_CASES = [(transform, event) for transform in list(_TRANSFORMS)[:5] for event in _EVENTS]
_CASES += [
    (transform, event)
    for transform in list(_TRANSFORMS)[5:]
    for event in ("another shape", "a value of another dtype", "attributes set", "an error after everything", "no jit")
]


def _outcome(world: _World, step: Any, model: Any) -> tuple[list[Any], str | None]:
    try:
        found = world.outer(lambda x: step(model, x))(world.x)
    except (_Boom, TypeError, ValueError, lift.errors.LiftError) as error:
        words = f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
        return [], re.sub(r"\d{6,}", "(an address)", words)
    return [leaf for leaf in jax.tree.leaves(found) if leaf is not model], None


def _call(world: _World, transform: Callable[[Any], Any], step: Any) -> str | None:
    """Calls it, and a new function on a copy of the model, and compares; the error, if there is one."""
    twin, fresh = copy.deepcopy(world.model), transform(lambda m, x: world.work(m, x))
    world.runs = 0
    wanted, refused = _outcome(world, fresh, twin)
    runs, world.runs = world.runs, 0
    found, refused_too = _outcome(world, step, world.model)
    assert refused == refused_too
    assert world.runs <= runs, "not more often than a function does that has no plan"
    assert_same(report(world.model), report(twin))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)
    return refused


@pytest.mark.parametrize(("transform", "event"), _CASES, ids=[" ".join(reversed(case)) for case in _CASES])
def test_a_planned_call_that_traces_does_what_a_new_function_does(transform: str, event: str) -> None:
    world, lifted = _World(), _TRANSFORMS[transform]
    step = lifted(lambda m, x: world.work(m, x))
    for _ in range(3):
        step(world.model, world.x)
    assert step.stats().planned == 1, "the event meets a plan"
    with _EVENTS[event](world):
        for _ in range(2):
            _call(world, lifted, step)
            world.cell.value = world.cell.value + 1
    assert _call(world, lifted, step) is None
    for _ in range(4):
        step(world.model, world.x)
    before = step.stats().planned
    assert _call(world, lifted, step) is None
    assert step.stats().planned == before + 1


@_each_transform
def test_planned_calls_and_their_traces_are_counted(transform: str) -> None:
    world = _World()
    step = _TRANSFORMS[transform](lambda m, x: world.work(m, x))
    for call in range(1, 7):
        step(world.model, world.x)
        traces = call if transform in _TRACED_EACH_TIME else 1
        assert step.stats() == (call, max(call - 2, 0), traces, 1, int(call > 1))
        assert world.runs == traces


@_each_transform
def test_a_plan_that_is_not_for_these_kinds_is_given_up_before_the_function_runs(transform: str) -> None:
    world = _World()
    step = _TRANSFORMS[transform](lambda m, x: world.work(m, x))
    for _ in range(4):
        step(world.model, world.x)
    for turn, dtype in enumerate([jnp.float16, jnp.float32, jnp.float16, jnp.float32], 1):
        # The guards look at classes of values: that this one has another dtype is found out by JAX.
        world.model.weight.value = jnp.ones(2, dtype)
        before, world.runs = step.stats(), 0
        step(world.model, world.x)
        after = step.stats()
        assert (after.calls, after.planned, after.plans) == (before.calls + 1, before.planned, 1)
        assert world.runs == after.traces - before.traces
        assert world.runs == int(transform in _TRACED_EACH_TIME or turn == 1)
        assert after.programs == 2
        step(world.model, world.x)
        assert step.stats().planned == before.planned + 1


@_each_transform
def test_an_error_while_a_planned_call_traces_is_the_users_own(transform: str) -> None:
    world, error = _World(), _Boom("of the user")

    def f(model: Any, x: Any) -> Any:
        out = world.work(model, x)
        if failing:
            raise error
        return out

    failing = False
    step = _TRANSFORMS[transform](f)
    for _ in range(4):
        step(world.model, world.x)
    before, values, words = step.stats(), jax.tree.leaves(lift.state(world.model)), report(world.model)
    failing, world.does = True, frozenset(["write", "set", "grow", "note"])
    with jax.default_matmul_precision("float32"), pytest.raises(_Boom) as raised:
        step(world.model, world.x)
    assert raised.value is error
    assert_same(report(world.model), words)
    assert all(map(operator.is_, jax.tree.leaves(lift.state(world.model)), values))
    after = step.stats()
    assert after == (before.calls, before.planned, before.traces + 1, 1, 1)
    failing, world.does = False, frozenset(["write"])
    step(world.model, world.x)
    assert step.stats().planned == before.planned + 1


def _by_default(world: _World, model: Any) -> Callable[[Any], Any]:
    def f(x: Any, model: Any = model) -> Any:
        return world.work(model, x)

    return f


_BOUND: dict[str, Callable[[_World, Any], Callable[[Any], Any]]] = {
    "closure": lambda world, model: lambda x: world.work(model, x),
    "default": _by_default,
    "partial": lambda world, model: functools.partial(lambda model, x: world.work(model, x), model),
    "method": lambda world, model: model.apply,
    "module": lambda world, model: model,
}
_OF_X: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jit": lambda f: lift.jit(f),
    "remat": lambda f: lift.remat(f),
    "value_and_grad": lambda f: lift.value_and_grad(f),
    "scan": lambda f: lambda x: lift.scan(lambda c, y: (c, f(y)), in_axes=(lift.Carry, 0))(0.0, x),
}


@pytest.mark.parametrize("transform", _OF_X)
@pytest.mark.parametrize("where", _BOUND)
def test_a_captured_model_is_updated_by_planned_calls_that_trace(transform: str, where: str) -> None:
    class Bound(_Model):
        def apply(self, x: Any) -> Any:
            return world.work(self, x)

        __call__ = apply

    world, model = _World(), Bound()
    step = _OF_X[transform](_BOUND[where](world, model))

    def call() -> None:
        twin = copy.deepcopy(model)
        wanted, refused = _outcome(world, lambda _, x: _OF_X[transform](_BOUND[where](world, twin))(x), None)
        found, refused_too = _outcome(world, lambda _, x: step(x), None)
        assert refused == refused_too
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        assert_same(report(model), report(twin))

    for x in (jnp.arange(2.0), jnp.ones((2, 3))):
        world.x = x
        for _ in range(3):
            call()
    for event in (_doing("raise", "set"), _doing("grow"), _with_x(lambda: jnp.ones(3)), _without_jit):
        with event(world):
            call()
            call()
        call()


@_each_transform
def test_kinds_of_leaves_far_behind_are_found_out(transform: str) -> None:
    def f(model: Any, several: Any) -> Any:
        model.count.value = model.count.value + 1
        return sum((model.weight.value * x.astype(jnp.float32)).sum() for x in several)

    model, step = _Model(), _TRANSFORMS[transform](f)
    fronts = [jnp.ones(2)] * 20
    for last in [jnp.ones(2)] * 3 + [jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float16), jnp.ones(2)] * 4:
        twin = copy.deepcopy(model)
        wanted = _TRANSFORMS[transform](lambda m, several: f(m, several))(twin, [*fronts, last])
        found = step(model, [*fronts, last])
        for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            if one is not model:
                assert one.dtype == other.dtype
                np.testing.assert_allclose(one, other, rtol=1e-6)
        assert_same(report(model), report(twin))
    assert step.stats().planned > 0


@_each_traced
def test_two_threads_trace_planned_calls_on_their_own_models(transform: str) -> None:
    step = _TRANSFORMS[transform](_World().work)

    def run(model: _Model) -> Any:
        for _ in range(10):
            out = step(model, jnp.ones(2))
        return out

    models = _Model(), _Model()
    models[1].n = 2
    one, other = in_threads(*(functools.partial(run, model) for model in models))
    for model, found in zip(models, (one, other), strict=True):
        twin = _Model()
        twin.n = model.n
        wanted = run(twin)
        assert_same(report(model), report(twin))
        for mine, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-6)


def test_an_array_of_numpy_is_read_only_in_planned_calls_that_trace() -> None:
    def f(model: Any, host: Any, x: Any) -> Any:
        if writing:
            host[0] = 5.0
        return model.weight.value.sum() * x + host[0]

    writing = False
    model, host, step = _Model(), np.ones(2, np.float32), lift.vmap(f, in_axes=(None, None, 0))
    for _ in range(4):
        np.testing.assert_array_equal(step(model, host, jnp.ones(2)), [4.0, 4.0])
    assert step.stats().planned == 2
    writing = True
    with pytest.raises(ValueError, match="read-only"):
        step(model, host, jnp.ones(2))
    assert host[0] == 1.0
