"""What is counted: which calls go by a plan, which trace, and that the results are right in either case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import liftcore as lift
from liftcore.errors import LiftError
from tests.models import Affine, Counter, Family, Net, each_family, weights

_CALLS = 8


class Momentum(lift.Module):
    """A hand-written optimizer: a variable beside each of the model's own."""

    def __init__(self, model: Any) -> None:
        self.params = [model.weight, model.bias]
        self.velocity = [lift.Variable(jnp.zeros_like(param.value)) for param in self.params]
        self.rate = 0.125

    def apply(self, grads: Any) -> None:
        for param, velocity, grad in zip(self.params, self.velocity, grads, strict=True):
            velocity.value = 0.5 * velocity.value + grad
            param.value = param.value - self.rate * velocity.value


def _loss(model: Any, x: Any) -> Any:
    return (model(x) ** 2).sum()


def _train(model: Any, optimizer: Momentum, x: Any) -> Any:
    loss, grads = lift.value_and_grad(_loss)(model, x)
    optimizer.apply([grads["weight"], grads["bias"]])
    return loss


@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["kept", "donated"])
def test_a_training_loop_traces_once_and_is_planned_from_the_third_call_on(donated: tuple[int, ...]) -> None:
    step, x = lift.jit(lambda m, o, x: _train(m, o, x), donate_argnums=donated), jnp.ones(3)
    model, twin = Affine(*weights()), Affine(*weights())
    optimizer, other = Momentum(model), Momentum(twin)
    for call in range(1, _CALLS + 1):
        np.testing.assert_allclose(step(model, optimizer, x), _train(twin, other, x), rtol=1e-4)
        assert step.stats() == (call, max(call - 2, 0), 1, 1, int(call > 1))
    for one, another in zip([*optimizer.params, *optimizer.velocity], [*other.params, *other.velocity], strict=True):
        np.testing.assert_allclose(one.value, another.value, rtol=1e-4, atol=1e-6)


def test_equinox_modules_that_are_passed_in_again_trace_once() -> None:
    optimizer = optax.sgd(0.125, momentum=0.5)

    def train(model: Any, moments: Any, x: Any) -> Any:
        grads = eqx.filter_grad(_loss)(model, x)
        updates, moments = optimizer.update(grads, moments)
        return eqx.apply_updates(model, updates), moments

    step, x = lift.jit(train), jnp.ones(3)
    model = twin = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    moments = other = optimizer.init(eqx.filter(model, eqx.is_array))
    for _ in range(_CALLS):
        model, moments = step(model, moments, x)
        twin, other = train(twin, other, x)
        np.testing.assert_allclose(model.weight, twin.weight, rtol=1e-4, atol=1e-6)
    assert step.stats().calls == _CALLS
    assert step.stats().planned >= _CALLS - 2
    assert (step.stats().traces, step.stats().programs) == (1, 1)


@each_family
def test_rebuilt_models_trace_once(family: Family) -> None:
    step = lift.jit(lambda model, x: family.apply(model, x))
    for seed in range(4):
        model = family.make(*weights(seed))
        for _ in range(3):
            np.testing.assert_allclose(step(model, jnp.ones(3)), family.apply(model, jnp.ones(3)), rtol=1e-5)
    assert (step.stats().traces, step.stats().programs) == (1, 1)
    assert step.stats().planned >= 4


class Tree(eqx.Module):
    """An Equinox module with a function and an optimizer that are made anew each time."""

    weight: Any
    hook: Any
    optimizer: Any


def _module(weight: Any, hook: Any, optimizer: Any) -> lift.Module:
    model = lift.Module()
    model.weight, model.hook, model.optimizer = lift.Param(weight), hook, optimizer
    return model


@pytest.mark.parametrize("make", [_module, Tree])
def test_fresh_lambdas_and_optimizers_as_attributes_trace_once(make: Callable[..., Any]) -> None:
    step = lift.jit(lambda model: model.hook(model.weight * 2))
    for seed in range(4):
        model = make(jnp.full(2, float(seed)), lambda x: x + 1, optax.adamw(1e-3))
        for _ in range(3):
            np.testing.assert_array_equal(step(model), jnp.full(2, 2.0 * seed + 1))
    assert (step.stats().traces, step.stats().programs) == (1, 1)
    assert step.stats().planned >= 4


@pytest.mark.parametrize("make", [_module, Tree])
def test_another_lambda_of_other_code_is_seen(make: Callable[..., Any]) -> None:
    step = lift.jit(lambda model: model.hook(model.weight))
    optimizer = optax.adamw(1e-3)
    for number in (1.0, 2.0, 1.0, 2.0):
        model = make(jnp.ones(()), lambda x, number=number: x * number, optimizer)
        for _ in range(4):
            assert float(step(model)) == number
    assert (step.stats().traces, step.stats().programs) == (2, 2)
    assert step.stats().planned >= 8


def test_an_eager_scan_does_not_trace_on_its_second_call() -> None:
    runs: list[int] = []

    def body(counter: Counter, x: Any) -> Any:
        runs.append(1)
        return counter, counter.add(x)

    loop, counter = lift.scan(body, in_axes=(lift.Carry, 0)), Counter(np.float32(0))
    for call in range(1, _CALLS + 1):
        _, ys = loop(counter, jnp.ones(2))
        np.testing.assert_array_equal(ys, [2.0 * call - 1, 2.0 * call])
        assert len(runs) == loop.stats().traces == 1
    assert loop.stats() == (_CALLS, _CALLS - 2, 1, 1, 1)


def test_a_cleared_cache_counts_from_zero() -> None:
    step, counter = lift.jit(lambda counter: counter.add(1.0)), Counter(np.float32(0))
    for _ in range(4):
        step(counter)
    assert step.stats() == (4, 2, 1, 1, 1)
    step.clear_cache()
    assert step.stats() == (0, 0, 0, 0, 0)
    assert [float(step(counter)) for _ in range(4)] == [5.0, 6.0, 7.0, 8.0]
    # The model is known from before, so the first call makes the plan.
    assert step.stats() == (4, 3, 1, 1, 1)


def test_to_clear_one_function_leaves_the_others_as_they_are() -> None:
    def add(counter: Counter) -> Any:
        return counter.add(1.0)

    kept, cleared, counter = lift.jit(add), lift.jit(add, donate_argnums=0), Counter(np.float32(0))
    for _ in range(4):
        kept(counter)
        cleared(counter)
    before = kept.stats()
    assert before.planned > 0
    cleared.clear_cache()
    assert cleared.stats() == (0, 0, 0, 0, 0)
    assert kept.stats() == before
    assert lift.jit(add).stats() == before, "it counts for the function, not for the wrapper"
    assert float(kept(counter)) == 9.0
    assert kept.stats().planned == before.planned + 1


@pytest.mark.parametrize("make", [Affine, lambda weight, bias: Tree(weight, abs, None)], ids=["objects", "equinox"])
def test_another_batch_shape_is_one_more_trace_and_both_stay_planned(make: Callable[..., Any]) -> None:
    def apply(model: Any, x: Any) -> Any:
        return x @ model.weight

    step, model = lift.jit(apply), make(*weights())
    batches = [jnp.ones(3), jnp.ones((2, 3))]
    for x in (*batches, *batches):
        step(model, x)
    before = step.stats()
    assert (before.traces, before.programs, before.plans) == (2, 2, 2)
    for x in batches * 4:
        np.testing.assert_allclose(step(model, x), apply(model, x), rtol=1e-5)
    after = step.stats()
    assert after == (before.calls + 8, before.planned + 8, 2, 2, 2)


def test_each_dtype_has_a_program_and_a_plan() -> None:
    step = lift.jit(lambda model, x: model(x))
    model = Affine(*weights())
    inputs = [jnp.ones(3), jnp.ones(3, jnp.int32), jnp.ones(3, bool), np.ones(3, np.float32), jnp.ones(3, jnp.float16)]
    for _ in range(4):
        for x in inputs:
            np.testing.assert_allclose(step(model, x), model(x), rtol=1e-3)
    stats = step.stats()
    assert stats.traces == stats.programs == stats.plans == len(inputs)
    assert stats.planned >= 2 * len(inputs)


def test_programs_and_plans_are_counted_by_structure() -> None:
    step = lift.jit(lambda model: model.value * 2)

    def make(**words: Any) -> Any:
        model = lift.Module()
        model.value = lift.Variable(jnp.ones(()))
        for name, value in words.items():
            setattr(model, name, value)
        return model

    models = [make(), make(), make(k=1), make(k=True), make(k=1), make(other=1)]
    for _ in range(3):
        for model in models:
            step(model)
    # A plan for each model, a program for each of: nothing, 1, True, another name.
    assert step.stats() == (18, 6, 4, 4, 6)


_TRACED_EACH_TIME: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: lift.vmap(f, in_axes=(None, 0)),
    "grad": lambda f: lift.grad(lambda m, x: f(m, x).sum()),
    "grad of an array": lambda f: lift.grad(lambda m, x: f(m, x).sum(), argnums=1),
    "value_and_grad": lambda f: lift.value_and_grad(lambda m, x: f(m, x).sum()),
    "vmap of grad": lambda f: lift.vmap(lift.grad(lambda m, x: f(m, x).sum()), in_axes=(None, 0)),
}


@pytest.mark.parametrize("transform", _TRACED_EACH_TIME.values(), ids=_TRACED_EACH_TIME)
@each_family
def test_what_traces_at_each_call_runs_the_function_once_a_call(
    family: Family, transform: Callable[[Any], Any]
) -> None:
    runs: list[int] = []

    def f(model: Any, x: Any) -> Any:
        runs.append(1)
        return family.apply(model, x)

    step, model = transform(f), family.make(*weights())
    right = transform(family.apply)(model, jnp.ones((2, 3)))
    for call in range(1, 2 * _CALLS + 1):
        out = step(model, jnp.ones((2, 3)))
        assert len(runs) == call, "side effects in Python happen once"
        for one, other in zip(jax.tree.leaves(out), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert step.stats().calls == step.stats().traces == 2 * _CALLS


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_what_traces_at_each_call_writes_once_a_call(transform: str) -> None:
    def f(net: Net, x: Any) -> Any:
        return net(x).sum()

    # The running mean would show a call that was made twice.
    net, twin = Net(), Net()
    step: Any = {
        "vmap": lambda: lift.vmap(f, in_axes=(lift.StateAxes({lift.Param: None, ...: 0}), 0)),
        "grad": lambda: lift.grad(f, argnums=1),
    }[transform]()
    if transform == "vmap":
        for one in (net, twin):
            one.bn.mean.value = jnp.zeros(2)
    mean = twin.bn.mean.value
    x = jnp.asarray([[1.0, 2.0], [3.0, 5.0]])
    for _ in range(_CALLS):
        step(net, x)
        mean = 0.5 * mean + 0.5 * (x.mean(1) if transform == "vmap" else x.mean())
        np.testing.assert_allclose(net.bn.mean.value, mean, rtol=1e-6)


class Boom(Exception):
    """Raised by the user."""


_FAILING: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: lift.jit(f),
    "donated": lambda f: lift.jit(f, donate_argnums=0),
    "remat": lambda f: lift.remat(f),
    "grad": lambda f: lift.grad(f, argnums=1),
    "scan": lambda f: lambda m, x: lift.scan(lambda m, y: (m, f(m, x)), in_axes=(lift.Carry, 0))(m, jnp.ones(2)),
}


@pytest.mark.parametrize("transform", _FAILING.values(), ids=_FAILING)
def test_a_call_that_raises_leaves_everything_as_it_was(transform: Callable[[Any], Any]) -> None:
    def f(model: Any, x: Any) -> Any:
        model.counter.add(1.0)
        model.seen = model.name
        if model.fails:
            raise Boom
        return (model.counter.count.value * x).sum()

    model: Any = lift.Module()
    model.counter, model.name, model.seen, model.fails = Counter(np.float32(0)), "a", "a", False
    step, x = transform(f), jnp.asarray(2.0)
    for _ in range(5):
        step(model, x)
    before, value = float(model.counter.count.value), model.counter.count.value
    per_call = before / 5
    for _ in range(2):
        model.fails, model.name = True, "b"
        with pytest.raises(Boom):
            step(model, x)
        assert model.counter.count.value is value
        assert not value.is_deleted()
        assert model.seen == "a"
    model.fails, model.name = False, "a"
    for call in range(1, 5):
        step(model, x)
        assert float(model.counter.count.value) == before + call * per_call


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("transform", _FAILING.values(), ids=_FAILING)
def test_a_trace_that_raises_in_any_call_leaves_everything_as_it_was(
    transform: Callable[[Any], Any], call: int
) -> None:
    failing: list[bool] = []

    def f(counter: Counter, x: Any) -> Any:
        counter.add(1.0)
        if failing:
            raise Boom
        return counter.count.value * x

    step, counter = transform(f), Counter(np.float32(0))
    for _ in range(call - 1):
        step(counter, 2.0)
    value = counter.count.value
    # Nothing in the arguments tells that this call will raise: a planned one finds out while JAX traces.
    failing.append(True)
    jax.clear_caches()
    with pytest.raises(Boom):
        step(counter, 2.0)
    assert counter.count.value is value
    failing.clear()
    fresh, twin = transform(lambda counter, x: f(counter, x)), Counter(np.float32(value))
    for _ in range(4):
        step(counter, 2.0)
        fresh(twin, 2.0)
        assert float(counter.count.value) == float(twin.count.value)


def test_after_an_error_while_a_planned_program_runs_the_next_call_is_right() -> None:
    failing: list[bool] = []

    def check(count: Any) -> Any:
        if failing:
            raise Boom
        return np.float32(1)

    step = lift.jit(lambda c: c.add(jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), c.count.value)))
    counter = Counter(np.float32(0))
    for _ in range(4):
        assert np.isfinite(step(counter))
    assert step.stats().planned > 0
    failing.append(True)
    with pytest.raises(Exception, match="Boom") as error:
        jax.block_until_ready(step(counter))
    assert not isinstance(error.value, LiftError), "no argument is to blame"
    failing.clear()
    # JAX may tell of the error when the call has come back already.
    counter.count.value = jnp.asarray(np.float32(4))
    before = step.stats()
    assert float(step(counter)) == 5.0
    assert step.stats().planned == before.planned + 1
    assert step.stats().traces == 1


def _bump(counter: Counter, x: Any) -> Any:
    return counter.add(x.sum())


_EAGER: dict[str, Callable[[], Any]] = {
    "jit": lambda: lift.jit(lambda c, x: _bump(c, x)),
    "donated": lambda: lift.jit(lambda c, x: _bump(c, x), donate_argnums=0),
    "remat": lambda: lift.remat(lambda c, x: _bump(c, x)),
    "grad": lambda: lift.grad(lambda c, x: _bump(c, x), argnums=1),
    "scan": lambda: lift.scan(lambda c, x: (c, _bump(c, x)), in_axes=(lift.Carry, 0)),
}


@pytest.mark.parametrize("make", _EAGER.values(), ids=_EAGER)
@pytest.mark.parametrize("planned", [False, True], ids=["new", "planned"])
def test_a_disabled_jit_gives_the_same(make: Callable[[], Any], planned: bool) -> None:
    step, counter, x = make(), Counter(np.float32(0)), jnp.ones(2)
    calls = 4 if planned else 0
    for _ in range(calls):
        step(counter, x)
    for turn in range(3):
        with jax.disable_jit():
            step(counter, x)
        assert float(counter.count.value) == 2.0 * (calls + 2 * turn + 1)
        step(counter, x)
        assert float(counter.count.value) == 2.0 * (calls + 2 * turn + 2)


@pytest.mark.parametrize("make", _EAGER.values(), ids=_EAGER)
def test_cleared_caches_of_jax_give_the_same(make: Callable[[], Any]) -> None:
    step, counter, x = make(), Counter(np.float32(0)), jnp.ones(2)
    for call in range(1, 13):
        step(counter, x)
        assert float(counter.count.value) == 2.0 * call
        if call % 4 == 0:
            jax.clear_caches()
    assert step.stats().calls == 12
    assert step.stats().programs == 1


def test_what_jax_forgot_is_traced_once_and_planned_again() -> None:
    step, counter = lift.jit(lambda counter: counter.add(1.0)), Counter(np.float32(0))
    for _ in range(4):
        step(counter)
    for _ in range(4):
        jax.clear_caches()
        step(counter)
        before = step.stats()
        step(counter)
        assert step.stats().planned == before.planned + 1
        assert step.stats().traces == before.traces
    assert float(counter.count.value) == 12.0
    assert step.stats().traces == 5


def test_donated_buffers_are_used_again_by_planned_calls() -> None:
    model = Affine(*weights())
    optimizer = Momentum(model)
    cells = [*optimizer.params, *optimizer.velocity]
    step = lift.jit(lambda m, o, x: _train(m, o, x), donate_argnums=(0, 1))
    for call in range(_CALLS):
        before = [cell.value for cell in cells]
        buffers = {value.unsafe_buffer_pointer() for value in before}
        step(model, optimizer, jnp.ones(3))
        assert all(value.is_deleted() for value in before)
        assert {cell.value.unsafe_buffer_pointer() for cell in cells} == buffers
        assert step.stats().planned == max(call - 1, 0)
    assert all(np.isfinite(cell.value).all() for cell in cells)
    assert np.isfinite(model(jnp.ones(3))).all()


def test_a_donated_model_and_one_that_is_only_read_stay_valid() -> None:
    step = lift.jit(lambda counter, teacher, x: counter.add(teacher(x).sum()), donate_argnums=0)
    counter, teacher = Counter(np.float32(0)), Affine(*weights())
    kept, right = teacher.weight.value, float(teacher(jnp.ones(3)).sum())
    for call in range(1, _CALLS + 1):
        old = counter.count.value
        assert float(step(counter, teacher, jnp.ones(3))) == pytest.approx(right * call, rel=1e-4)
        assert call == 1 or old.is_deleted()
        assert teacher.weight.value is kept
        assert not kept.is_deleted()
    assert step.stats().planned == _CALLS - 2


def test_a_donated_array_is_refused_in_planned_calls_too() -> None:
    step, counter = lift.jit(lambda counter: counter.add(1.0), donate_argnums=0), Counter(np.float32(0))
    for _ in range(4):
        old = counter.count.value
        step(counter)
    assert old.is_deleted()
    assert step.stats().planned > 0
    now, counter.count.value = counter.count.value, old
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(counter)
    counter.count.value = now
    assert float(step(counter)) == 5.0
