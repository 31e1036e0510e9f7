"""What is traced again and what is not."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import liftcore as lift
from liftcore import Carry
from tests.models import Affine, Counter, each_family, weights

SCALE = 1


def counted(f):
    """A function that counts its traces."""
    traces = []

    def wrapped(*args, **kwargs):
        traces.append(1)
        return f(*args, **kwargs)

    return wrapped, traces


def times(k):
    return lambda x: x * k


@each_family
def test_a_model_rebuilt_three_times_is_traced_once(family):
    step, traces = counted(family.apply)
    jitted = lift.jit(step)
    for seed in range(3):
        model = family.make(*weights(seed))
        np.testing.assert_allclose(jitted(model, jnp.ones(3)), family.apply(model, jnp.ones(3)), rtol=1e-6)
    assert len(traces) == 1


@each_family
def test_a_fresh_optimizer_beside_a_rebuilt_model_is_traced_once(family):
    def train(model, optimizer, moments):
        grads = lift.grad(lambda m: family.apply(m, jnp.ones(3)).sum())(model)
        updates, moments = optimizer.update(grads, moments, lift.state(model, "param"))
        return lift.update(model, optax.apply_updates(lift.state(model, "param"), updates)), moments

    step, traces = counted(train)
    jitted = lift.jit(step)
    for seed in range(3):
        model, optimizer = family.make(*weights(seed)), optax.adam(1e-3)
        before = family.arrays(model)[0]
        model, _ = jitted(model, optimizer, optimizer.init(lift.state(model, "param")))
        assert np.abs(family.arrays(model)[0] - before).max() == pytest.approx(1e-3, rel=1e-3)
    assert len(traces) == 1


@pytest.mark.parametrize("kind", ["objects", "equinox", "pytree"])
def test_an_attribute_that_is_a_fresh_lambda_or_optimizer_is_traced_once(kind):
    class Tree(eqx.Module):
        act: object
        optimizer: object

    def make():
        attributes = {"act": lambda x: x * 2, "optimizer": optax.adamw(1e-3)}
        if kind == "equinox":
            return Tree(**attributes)
        if kind == "pytree":
            return attributes
        model = lift.Module()
        vars(model).update(attributes)
        return model

    step, traces = counted(lambda m, x: (m["act"] if kind == "pytree" else m.act)(x))
    jitted = lift.jit(step)
    assert [float(jitted(make(), 3.0)) for _ in range(3)] == [6.0, 6.0, 6.0]
    assert len(traces) == 1


@pytest.mark.parametrize("transform", [lift.jit, lift.vmap], ids=["jit", "vmap"])
def test_functions_of_equal_code_that_read_different_globals_differ(monkeypatch, transform):
    model = lift.Module()
    lifted = transform(lambda m, x: m.act(x)) if transform is lift.jit else transform(lambda m, x: m.act(x), (None, 0))
    outputs = []
    for scale in (1, 2, 3):
        monkeypatch.setitem(globals(), "SCALE", scale)
        model.act = lambda x: x * SCALE
        outputs.append(float(lifted(model, jnp.ones(1))[0]))
    assert outputs == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["objects", "equinox"])
def test_functions_of_equal_code_around_different_values_differ(kind):
    class Tree(eqx.Module):
        act: object

    def make(act):
        if kind == "equinox":
            return Tree(act)
        model = lift.Module()
        model.act = act
        return model

    lifted = lift.jit(lambda m, x: m.act(x))
    assert [float(lifted(make(lambda x, k=k: x * k), 1.0)) for k in (1, 2, 3)] == [1, 2, 3]
    assert [float(lifted(make(times(k)), 1.0)) for k in (4, 5, 6)] == [4, 5, 6]


@pytest.mark.parametrize("kind", ["objects", "equinox", "equinox static"])
@pytest.mark.parametrize(
    ("values", "dtypes"),
    [((1, True, 1.0), ("int32", "bool", "float32")), ((0.0, -0.0), ("float32",) * 2), (("1", b"1"), ("str", "bytes"))],
)
def test_static_values_that_python_calls_equal_are_different_programs(kind, values, dtypes):
    class Tree(eqx.Module):
        k: object

    class StaticTree(eqx.Module):
        k: object = eqx.field(static=True)

    def make(k):
        if kind == "objects":
            model = lift.Module()
            model.k = k
            return model
        return (StaticTree if "static" in kind else Tree)(k)

    def read(m):
        return type(m.k).__name__ if isinstance(m.k, str | bytes) else jnp.asarray(m.k)

    step, traces = counted(read)
    lifted = lift.jit(step)
    outs = [lifted(make(value)) for value in values]
    assert tuple(out if isinstance(out, str) else out.dtype.name for out in outs) == dtypes
    assert len(traces) == len(values)
    if values == (0.0, -0.0):
        assert [bool(np.signbit(out)) for out in outs] == [False, True]


def test_a_nan_among_static_values_is_traced_once():
    step, traces = counted(lambda m: jnp.asarray(m.k))
    lifted = lift.jit(step)
    for _ in range(3):
        model = lift.Module()
        model.k = float("nan")
        assert np.isnan(lifted(model))
    assert len(traces) == 1


@each_family
def test_five_eager_scans_with_one_function_trace_its_body_once(family):
    step, traces = counted(lambda model, c, x: (c + x, family.apply(model, x)))
    for seed in range(5):
        model, xs = family.make(*weights(seed)), jnp.ones((4, 3)) * seed
        last, ys = lift.scan(step, in_axes=(None, Carry, 0))(model, jnp.zeros(3), xs)
        np.testing.assert_allclose(last, 4 * xs[0])
        np.testing.assert_allclose(ys[0], family.apply(model, xs[0]), rtol=1e-6)
    assert len(traces) == 1


def test_eager_scans_of_methods_and_of_carried_models_trace_their_body_once():
    step, traces = counted(lambda counter, x: (counter, counter.add(x)))
    counter = Counter(np.float32(0))  # of a strong type: JAX itself traces twice to promote a weak one
    for _ in range(5):
        lift.scan(step, counter, jnp.arange(3.0))
    assert float(counter.count.value) == 15.0
    assert len(traces) == 1

    class Model(Affine):
        traces = 0

        def step(self, c, x):
            Model.traces += 1
            return self(c), x

    for seed in range(5):
        lift.scan(Model(*weights(seed)).step, jnp.ones(3), jnp.arange(3.0))
    assert Model.traces == 1


def test_wrapping_the_same_function_again_shares_what_was_traced():
    step, traces = counted(lambda m, x: m(x))
    model = Affine(*weights())
    for _ in range(3):
        lift.jit(step)(model, jnp.ones(3))
        lift.jit(model.decode)(jnp.ones(3))
    assert len(traces) == 1
    lift.jit(step, donate_argnums=1)(model, jnp.ones(3))
    assert len(traces) == 2


def test_numbers_and_arrays_as_arguments_are_data():
    step, traces = counted(lambda x, n: x * n["k"])
    lifted = lift.jit(step)
    assert [float(lifted(2.0, {"k": k})) for k in (1, 2, 3)] == [2.0, 4.0, 6.0]
    assert len(traces) == 1


def test_static_arguments_compare_by_value():
    step, traces = counted(lambda x, shape, act: act(jnp.broadcast_to(x, shape)))
    lifted = lift.jit(step, static_argnums=(1, 2))
    for _ in range(3):
        assert lifted(1.0, [2, 3], lambda x: x + 1).shape == (2, 3)
    assert len(traces) == 1
    assert lifted(1.0, [3, 3], lambda x: x + 1).shape == (3, 3)
    assert len(traces) == 2


def test_other_shapes_and_dtypes_are_traced_again_and_right():
    step, traces = counted(lambda m, x: m(x))
    lifted = lift.jit(step)
    for size in (2, 3, 2, 3):
        model = Affine(*weights(size, size))
        np.testing.assert_allclose(lifted(model, jnp.ones(size)), model(jnp.ones(size)), rtol=1e-6)
    assert len(traces) == 2


def test_a_cleared_cache_is_traced_again():
    step, traces = counted(lambda x: x + 1)
    lifted = lift.jit(step)
    assert (float(lifted(1.0)), float(lifted(1.0))) == (2.0, 2.0)
    lifted.clear_cache()
    assert float(lifted(1.0)) == 2.0
    assert len(traces) == 2
