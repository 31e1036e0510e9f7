"""A lifted call that raises half-way leaves every object exactly as it was."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import AliasError, CaptureError, LiftError, StaticError, WriteError
from tests.models import Affine, Config, Counter, both_ways, weights


class Boom(Exception):
    """The user's own."""


class Model(lift.Module):
    """State of every kind, shared, in containers, and with a cycle."""

    def __init__(self):
        self.affine = Affine(*weights())
        self.counters = [Counter(0.0), Counter(1.0)]
        self.named = {"a": lift.Cache({"k": jnp.zeros(2)})}
        self.buffer = jnp.ones(3)
        self.rngs = lift.Rngs(0)
        self.config = Config()
        self.tied = self.affine.weight
        self.affine.parent = self


def contents(obj, seen):
    """Everything in an object by identity: attributes, items, values, metadata."""
    if id(obj) in seen:
        return
    seen[id(obj)] = obj
    if isinstance(obj, lift.Variable):
        below = {"value": obj.value, **obj.metadata}
        if isinstance(obj.value, dict):
            below |= obj.value
    elif isinstance(obj, lift.Module):
        below = dict(vars(obj))
    elif isinstance(obj, dict | list):
        below = dict(obj) if isinstance(obj, dict) else dict(enumerate(obj))
    else:
        return
    seen["inside", id(obj)] = [(key, id(child)) for key, child in below.items()]
    for child in below.values():
        contents(child, seen)


def exactly(obj):
    seen = {}
    contents(obj, seen)
    return {key: value for key, value in seen.items() if isinstance(key, tuple)}, seen


MUTATIONS = {
    "write": lambda m: m.counters[0].add(1.0),
    "write a parameter": lambda m: setattr(m.affine.weight, "value", m.affine.weight.value * 2),
    "write into a dict": lambda m: [cache.value.update(k=jnp.ones(2)) for cache in m.named.values()],
    "write a buffer": lambda m: setattr(m, "buffer", m.buffer + 1),
    "draw": lambda m: m.rngs(),
    "add": lambda m: setattr(m, "extra", Counter(m.buffer)),
    "append": lambda m: m.counters.append(Counter()),
    "pop": lambda m: m.counters and m.counters.pop(),
    "swap": lambda m: m.counters.reverse(),
    "clear": lambda m: m.named.clear(),
    "set static": lambda m: setattr(m, "config", "other"),
    "set metadata": lambda m: m.affine.bias.set_metadata(note="new"),
    "delete": lambda m: vars(m).pop("tied", None),
    "close a cycle": lambda m: setattr(m, "me", m),
}

MAPPED = lift.StateAxes({...: None})
CALLS = {
    "jit": lambda f: lambda m, x: lift.jit(f)(m, x),
    "remat": lambda f: lambda m, x: lift.remat(f)(m, x),
    "vmap": lambda f: lambda m, x: lift.vmap(f, in_axes=(None, 0))(m, x),
    "scan carry": lambda f: lambda m, x: lift.scan(lambda m, x: (m, f(m, x)), m, x),
    "scan broadcast": lambda f: lambda m, x: lift.scan(f, in_axes=(None, 0), out_axes=0)(m, x),
    "scan by filter": lambda f: (
        lambda m, x: lift.scan(f, in_axes=(lift.StateAxes({"batch_stat": Carry, ...: None}), 0), out_axes=0)(m, x)
    ),
    "grad": lambda f: lambda m, x: lift.grad(lambda m, x: (f(m, x), m.buffer.sum())[1])(m, x),
    "value_and_grad": lambda f: lambda m, x: lift.value_and_grad(lambda x, m: (f(m, x), x.sum())[1])(x, m),
    "jit of vmap of jit": lambda f: lambda m, x: lift.jit(lift.vmap(lift.jit(f), in_axes=(None, 0)))(m, x),
    "jit of grad of remat": lambda f: (
        lambda m, x: lift.jit(lift.grad(lambda x, m: (lift.remat(f)(m, x), x.sum())[1]))(x, m)
    ),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.sampled_from(sorted(CALLS)), st.lists(st.sampled_from(sorted(MUTATIONS)), max_size=5))
def test_whatever_a_function_did_before_it_raised_is_undone(name, mutations):
    model = Model()
    before, held = exactly(model)

    def bad(m, x):
        for mutation in mutations:
            MUTATIONS[mutation](m)
        raise Boom

    with pytest.raises(Boom):
        CALLS[name](bad)(model, jnp.ones(2))
    assert exactly(model)[0] == before
    assert held


def write_error(m, x):
    MUTATIONS["write a buffer"](m)
    m.counters[1].add(x)
    m.broken = lift.Variable(x)
    return jnp.zeros(())


def static_error(m, x):
    MUTATIONS["write"](m)
    m.config = Config(x * 2)
    return jnp.zeros(())


def jax_error(m, x):
    MUTATIONS["write"](m)
    MUTATIONS["append"](m)
    return jnp.ones(2) @ jnp.ones(3)


CAPTURED = Counter()


def capture_error(m, x):
    MUTATIONS["write"](m)
    return CAPTURED.add(1.0)


FAILURES = {
    "static": (static_error, StaticError),
    "jax": (jax_error, TypeError),
    "capture": (capture_error, CaptureError),
}


@each_call
@pytest.mark.parametrize(("bad", "error"), FAILURES.values(), ids=FAILURES)
def test_an_error_of_any_kind_leaves_every_object_as_it_was_and_the_function_usable(call, bad, error):
    model = Model()
    before, held = exactly(model)
    for _ in range(2):
        with pytest.raises((error, WriteError)):  # a scan refuses the write itself
            call(bad)(model, jnp.ones(2))
        assert exactly(model)[0] == before
    assert held
    assert float(CAPTURED.count.value) == 0.0


@both_ways
@pytest.mark.parametrize("name", ["vmap", "scan carry", "scan broadcast", "jit of vmap of jit"])
def test_a_refused_write_leaves_every_object_as_it_was(name, how):
    model = Model()
    before, held = exactly(model)
    with pytest.raises(LiftError):
        how(lambda m, x: CALLS[name](write_error)(m, x))(model, jnp.ones(2))
    assert exactly(model)[0] == before
    assert held


@both_ways
def test_an_alias_error_on_the_way_out_leaves_every_object_as_it_was(how):
    model = Counter(np.zeros((2, 2)))
    before, held = exactly(model)
    with pytest.raises(AliasError):
        how(lambda m: lift.vmap(lambda m: (m.add(1.0), m), out_axes=(0, 1))(m))(model)
    assert exactly(model)[0] == before
    assert held


def test_a_function_that_raised_once_works_when_it_no_longer_raises():
    fail = True

    @lift.jit
    def step(counter):
        counter.add(1.0)
        if fail:
            raise Boom
        return counter.count.value

    counter = Counter()
    for _ in range(2):
        with pytest.raises(Boom):
            step(counter)
    assert float(counter.count.value) == 0.0
    fail = False
    assert float(step(counter)) == 1.0


def refuse(x):
    raise Boom


def failing_at_run_time(m):
    MUTATIONS["write"](m)
    MUTATIONS["append"](m)
    return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), m.counters[0].count.value)


def test_an_error_while_the_compiled_program_runs_leaves_every_object_as_it_was():
    model = Model()
    before, held = exactly(model)
    with pytest.raises(Exception, match="Boom") as error:
        lift.jit(failing_at_run_time)(model)
    assert not isinstance(error.value, LiftError), "no argument is to blame"
    assert exactly(model)[0] == before
    assert held


def test_an_error_while_a_donating_program_runs_names_what_was_donated():
    counter = Counter(np.float32(1))

    def step(counter):
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), counter.add(1.0))

    with pytest.raises(Exception, match="Boom") as error:
        lift.jit(step, donate_argnums=0)(counter)
    assert counter.count.value.is_deleted()
    assert "counter.count" in "".join(error.value.__notes__)


def test_a_result_that_one_object_refuses_is_written_to_none():
    first = Counter()

    def inner(first, copied):
        first.add(1.0)
        copied.value = copied.value + 1

    with pytest.raises(WriteError):
        # What plain JAX hands in is a copy, and nothing may be written to that.
        jax.jit(lambda copied: lift.jit(inner)(first, copied))(Counter().count)
    assert float(first.count.value) == 0.0
