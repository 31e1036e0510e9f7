"""Plans keep nothing alive: neither models, in whatever way they refer to themselves, nor functions, nor old parts."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.models import Affine, Counter, weights


class Momentum(lift.Module):
    """An optimizer that holds the model's own variables."""

    def __init__(self, *params: lift.Param) -> None:
        self.params = list(params)
        self.velocity = [lift.Variable(jnp.zeros_like(param.value)) for param in params]

    def apply(self) -> None:
        for param, velocity in zip(self.params, self.velocity, strict=True):
            velocity.value = 0.5 * velocity.value + param.value
            param.value = param.value - velocity.value


class Tree(eqx.Module):
    """An Equinox module that a function in it may know."""

    weight: jax.Array
    hook: Any = eqx.field(static=True)


def _plain() -> Any:
    model: Any = lift.Module()
    model.child = Affine(*weights())
    return model


def _with_parent() -> Any:
    model = _plain()
    model.child.parent = model
    return model


def _with_own_method() -> Any:
    model = _plain()
    model.child.parent, model.child.hook = model, model.child.decode
    return model


def _with_closure() -> Any:
    model = _plain()
    model.hook = lambda x: model.child(x)
    return model


def _equinox() -> Tree:
    return Tree(jnp.ones(3), None)


def _equinox_with_closure() -> Tree:
    box: list[Any] = []
    box.append(Tree(jnp.ones(3), lambda: box[0]))
    return box[0]  # type: ignore[no-any-return]


def _apply(model: Any) -> Any:
    return (model.weight if isinstance(model, Tree) else model.child(jnp.ones(3))).sum()


_TRANSFORMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit": lambda f: lift.jit(f),
    "remat": lambda f: lift.remat(f),
    "scan": lambda f: lift.scan(lambda x, m: (x, f(m)), in_axes=(lift.Carry, None), length=2),
}
_each_transform = pytest.mark.parametrize("transform", ["jit", "remat", "scan"])


def _lifted(transform: str, function: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], Any]:
    """A way to call a lifted function on a model, and the function itself."""
    lifted: Any = _TRANSFORMS[transform](function)
    return (lambda model: lifted(0.0, model)) if transform == "scan" else lifted, lifted


def _call(step: Callable[..., Any], *args: Any, times: int = 6) -> None:
    for _ in range(times):
        step(*args)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _alive(known: list[weakref.ref[Any]]) -> list[Any]:
    return [one() for one in known if one() is not None]


@_each_transform
@pytest.mark.parametrize("make", [_plain, _equinox])
def test_without_cycles_reference_counting_frees_a_model(transform: str, make: Callable[[], Any]) -> None:
    model = make()
    step, lifted = _lifted(transform, lambda model: _apply(model))
    _call(step, model)
    assert lifted.stats().planned > 0
    with _no_collection():
        known = [weakref.ref(model), weakref.ref(model.weight if isinstance(model, Tree) else model.child.weight)]
        del model
        assert not _alive(known)


@_each_transform
@pytest.mark.parametrize("make", [_with_parent, _with_own_method, _equinox_with_closure])
def test_a_model_that_refers_to_itself_is_freed(transform: str, make: Callable[[], Any]) -> None:
    model = make()
    step, lifted = _lifted(transform, lambda model: _apply(model))
    _call(step, model)
    assert lifted.stats().planned > 0
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


@_each_transform
def test_a_model_that_a_function_in_it_closes_over_is_freed(transform: str) -> None:
    model = _with_closure()
    step, lifted = _lifted(transform, lambda model: _apply(model))
    _call(step, model)
    assert lifted.stats().planned == 0, "code around objects has no plans"
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_of_a_model_and_its_optimizer_either_may_go_first(first: str) -> None:
    @lift.jit
    def step(model: Any, optimizer: Momentum) -> Any:
        optimizer.apply()
        return model(jnp.ones(3)).sum()

    model = Affine(*weights())
    pair: dict[str, Any] = {"model": model, "optimizer": Momentum(model.weight, model.bias)}
    variable = weakref.ref(model.weight)
    del model
    _call(lambda: step(pair["model"], pair["optimizer"]))
    assert step.stats().planned > 0
    with _no_collection():
        known = weakref.ref(pair.pop(first))
        assert known() is None
        assert variable() is not None, "the other one still has it"
        pair.clear()
        assert variable() is None


def test_a_model_that_was_called_on_itself_and_on_a_part_of_it_is_freed_at_once() -> None:
    model = _plain()
    whole, part = lift.jit(lambda model: _apply(model)), lift.jit(lambda child: child(jnp.ones(3)))
    for _ in range(6):
        whole(model)
        part(model.child)
    assert min(whole.stats().planned, part.stats().planned) > 0
    with _no_collection():
        known = [weakref.ref(model), weakref.ref(model.child)]
        del model
        assert not _alive(known)


def _same_call(step: Any, model: Any) -> None:
    step(model, jnp.ones(3))


def _other_shape(step: Any, model: Any) -> None:
    step(model, jnp.ones((2, 3)))


def _other_function(step: Any, model: Any) -> None:
    lift.jit(lambda model, x: model.child(x).sum())(model, jnp.ones(3))


def _refused_by_the_user(step: Any, model: Any) -> None:
    with pytest.raises(TypeError):
        step(model, jnp.ones(5))


@pytest.mark.parametrize("call", [_same_call, _other_shape, _other_function, _refused_by_the_user])
def test_a_part_that_was_swapped_out_is_freed_by_the_next_call(call: Callable[[Any, Any], None]) -> None:
    model, step = _plain(), lift.jit(lambda model, x: model.child(x).sum())
    _call(step, model, jnp.ones(3))
    assert step.stats().planned > 0
    known = [weakref.ref(model.child), weakref.ref(model.child.weight), weakref.ref(model.child.weight.value)]
    model.child = Affine(*weights(1))
    call(step, model)
    with _no_collection():
        assert not _alive(known)


@pytest.mark.parametrize("where", ["a list", "a dict", "vars"])
def test_a_part_that_was_swapped_out_without_a_word_is_freed_by_the_next_call(where: str) -> None:
    model: Any = lift.Module()
    model.items, model.table, model.own = [Counter()], {"a": Counter()}, Counter()
    holder, key = {"a list": (model.items, 0), "a dict": (model.table, "a"), "vars": (vars(model), "own")}[where]
    step = lift.jit(lambda model: model.items[0].count + model.table["a"].count + model.own.count)
    _call(step, model)
    assert step.stats().planned > 0
    known = weakref.ref(holder[key])
    holder[key] = Counter(2.0)
    assert float(step(model)) == 2.0
    with _no_collection():
        assert known() is None


def test_arrays_of_an_earlier_call_are_freed() -> None:
    counter, step = Counter(jnp.zeros(8)), lift.jit(lambda counter, x: counter.add(x))
    _call(step, counter, jnp.ones(8))
    x = jnp.ones(8)
    step(counter, x)
    assert step.stats().planned > 0
    with _no_collection():
        known = [weakref.ref(x), weakref.ref(counter.count.value)]
        del x
        counter.count.value = jnp.zeros(8)
        assert not _alive(known)


def _captured(model: Any) -> Any:
    return lift.jit(lambda x: model.count.value * x)


def _captured_twice(model: Any) -> Any:
    inner = lift.remat(lambda x: model.count.value * x)
    return lift.jit(lambda x: inner(x) + model.count.value)


def _bound(model: Any) -> Any:
    class Local(Counter):
        def read(self, x: Any) -> Any:
            return self.count.value * x

    model.__class__ = Local
    return lift.jit(model.read)


def _in_the_class_body(model: Any) -> Any:
    class Local(Counter):
        @lift.jit
        def read(self, x: Any) -> Any:
            return self.count.value * x

    model.__class__ = Local
    return model.read


@pytest.mark.parametrize("cyclic", [False, True], ids=["plain", "cyclic"])
@pytest.mark.parametrize("make", [_captured, _captured_twice, _bound, _in_the_class_body])
def test_a_captured_model_is_freed_with_the_function(make: Callable[[Any], Any], cyclic: bool) -> None:
    model = Counter(2.0)
    if cyclic:
        model.me = model
    step = make(model)
    _call(step, 3.0)
    assert step.stats().planned > 0
    known: list[Any] = [weakref.ref(model), weakref.ref(model.count)]
    del model, step
    gc.collect()
    assert not _alive(known)


@pytest.mark.parametrize("kind", ["jit", "vmap", "grad", "scan"])
def test_a_function_that_is_dropped_is_freed_with_all_that_it_knows(kind: str) -> None:
    class Constant:
        """A static value by identity, known to the programs."""

    def made() -> list[weakref.ref[Any]]:
        constant, model = Constant(), Affine(*weights())
        model.constant = constant

        def f(model: Any, x: Any) -> Any:
            assert model.constant is constant
            return model(x).sum()

        lifted: Any = {
            "jit": lambda: lift.jit(f),
            "vmap": lambda: lift.vmap(f, in_axes=(None, 0)),
            "grad": lambda: lift.grad(f),
            "scan": lambda: lift.scan(lambda model, x: (model, f(model, x)), in_axes=(lift.Carry, 0)),
        }[kind]()
        _call(lifted, model, jnp.ones((2, 3)))
        assert lifted.stats().plans == 1
        everything: list[Any] = [f, lifted, constant, model]
        return list(map(weakref.ref, everything))

    known = made()
    jax.clear_caches()
    gc.collect()
    assert not _alive(known)


def test_many_models_keep_few_plans_and_an_old_one_gets_its_plan_back() -> None:
    old, step = Counter(), lift.jit(lambda counter: counter.add(1.0))
    _call(step, old)
    for _ in range(300):
        new = Counter()
        step(new)
        step(new)
    assert step.stats().plans <= 256
    assert step.stats().programs == 1
    _call(step, old)
    before = step.stats().planned
    step(old)
    assert step.stats().planned == before + 1
    assert float(old.count.value) == 13.0


def test_models_that_are_gone_leave_no_memory_behind() -> None:
    step = lift.jit(lambda counter: counter.add(1.0))
    known = []
    with _no_collection():
        for _ in range(50):
            new = Counter()
            _call(step, new, times=3)
            known.append(weakref.ref(new))
            del new
        assert not _alive(known)
    assert step.stats().planned == 50


@pytest.mark.parametrize(
    ("calls", "most"),
    [
        (lambda step, number: step(np.ones(number, np.float32), 0), 256),
        (lambda step, number: _call(step, _named(number), 0, times=2), 256),
        (lambda step, number: step(1.0, number), 32),
        (lambda step, number: step({str(number): 1.0}, 0), 32),
    ],
    ids=["shapes", "static attributes", "static arguments", "trees"],
)
def test_many_structures_keep_few_plans(calls: Callable[[Any, int], None], most: int) -> None:
    step = lift.jit(lambda x, n: None, static_argnums=1)
    for number in range(most + 5):
        calls(step, number)
    assert step.stats().plans == most
    assert step.stats().traces == most + 5


def _named(number: int) -> lift.Module:
    model = lift.Module()
    model.name = str(number)
    return model


def _model() -> Counter:
    return Counter(np.float32(0))


_COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "clone": lift.clone,
}


@pytest.mark.parametrize("copied", _COPIES.values(), ids=_COPIES)
def test_a_copy_gets_a_plan_of_its_own(copied: Callable[[Any], Any]) -> None:
    model, step = _model(), lift.jit(lambda counter: counter.add(1.0))
    _call(step, model)
    twin, before = copied(model), step.stats()
    step(twin)
    assert step.stats().planned == before.planned, "it is not known yet"
    _call(step, twin, times=5)
    after = step.stats()
    assert after.planned > before.planned
    assert (after.plans, after.traces) == (2, 1)
    assert (float(model.count.value), float(twin.count.value)) == (6.0, 12.0)


def test_a_shallow_copy_shares_variables_and_has_a_plan_of_its_own() -> None:
    model, step = _model(), lift.jit(lambda counter: counter.add(1.0))
    _call(step, model)
    twin = copy.copy(model)
    _call(step, twin)
    assert step.stats().plans == 2
    assert float(model.count.value) == float(twin.count.value) == 12.0
    twin.count = lift.BatchStat(jnp.zeros(()))
    assert (float(step(model)), float(step(twin))) == (13.0, 1.0)


def test_a_copy_outlives_what_it_was_copied_from() -> None:
    model, step = _plain(), lift.jit(lambda model: _apply(model))
    _call(step, model)
    twins = [copied(_without_functions(model)) for copied in _COPIES.values()]
    known = weakref.ref(model)
    _call(step, model)
    with _no_collection():
        del model
        assert known() is None
    for twin in twins:
        _call(step, twin)
        np.testing.assert_allclose(step(twin), _apply(twin), rtol=1e-6)


def _without_functions(model: Any) -> Any:
    # jnp.tanh cannot be pickled.
    model.child.act = abs
    return model


@pytest.mark.parametrize("make", [_model, _equinox])
def test_a_plan_is_not_to_be_seen(make: Callable[[], Any]) -> None:
    def seen(model: Any) -> Any:
        state = pickle.dumps(model), sorted(model.__getstate__()) if isinstance(model, Counter) else None
        return repr(model), sorted(dir(model)), sorted(vars(model)), state, jax.tree.structure(lift.state(model))

    model, twin = make(), make()
    step = lift.jit(lambda model: (model.weight if isinstance(model, Tree) else model.count.value) * 2)
    _call(step, model)
    assert step.stats().planned > 0
    assert seen(model) == seen(twin)
