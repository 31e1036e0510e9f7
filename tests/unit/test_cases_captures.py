"""Objects that a lifted function closes over: their current value is read, gradients flow, and a write is refused."""

import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore.errors import CaptureError
from tests.models import FAMILIES, Affine, Counter, both_ways, each_family, weights

X = jnp.arange(1.0, 4.0)
TEACHER = None


def apply_teacher(x):
    return TEACHER(x)


def closure(family, teacher, box):
    box.append(teacher)

    def set_teacher(new):
        nonlocal teacher
        teacher = new

    box.append(set_teacher)
    return lambda x: family.apply(teacher, x)


LIFTED = {
    "jit": lambda f, x: lift.jit(f)(x),
    "remat": lambda f, x: lift.remat(f)(x),
    "vmap": lambda f, x: lift.vmap(f)(jnp.stack([x, x]))[0],
    "scan": lambda f, x: lift.scan(f, in_axes=0, out_axes=0)(jnp.stack([x, x]))[1],
    "scan, a fresh step": lambda f, x: lift.scan(lambda c, x: (c, f(x)), 0.0, jnp.stack([x, x]))[1][0],
    "grad": lambda f, x: lift.grad(lambda x: (f(x).sum(), f(x)), has_aux=True)(x)[1],
    "value_and_grad": lambda f, x: lift.value_and_grad(lambda x: (f(x).sum(), f(x)), has_aux=True)(x)[0][1],
    "jit of vmap of jit": lambda f, x: lift.jit(lift.vmap(lift.jit(f)))(jnp.stack([x, x]))[0],
    "jit of scan of remat": lambda f, x: lift.jit(lift.scan(lift.remat(f), in_axes=0, out_axes=0))(x[None])[0],
}
each_lifted = pytest.mark.parametrize("lifted", LIFTED.values(), ids=LIFTED)


@each_family
@each_lifted
def test_a_captured_model_is_read_as_it_is_at_each_call(family, lifted):
    models = [family.make(*weights(seed)) for seed in range(2)]
    box = []
    f = closure(family, models[0], box)
    for model in models:
        box[1](model)
        np.testing.assert_allclose(lifted(f, X), family.apply(model, X), rtol=1e-6)


@each_lifted
def test_a_captured_model_updated_in_place_between_two_calls_is_seen(lifted):
    teacher = Affine(*weights())
    program = lift.jit(lambda x: lifted(lambda x: teacher(x), x))
    for seed in range(2):
        teacher.weight.value, teacher.bias.value = weights(seed)
        np.testing.assert_allclose(program(X), Affine(*weights(seed))(X), rtol=1e-6)


@each_lifted
def test_a_captured_tree_updated_in_place_between_two_calls_is_seen(lifted):
    teacher = FAMILIES[2].make(*weights())
    f = lambda x: FAMILIES[2].apply(teacher, x)  # noqa: E731
    for seed in range(2):
        teacher["layer"][:] = weights(seed)
        np.testing.assert_allclose(lifted(f, X), FAMILIES[2].apply(teacher, X), rtol=1e-6)


WAYS = {
    "default": lambda m: lambda x, m=m: m(x),
    "keyword default": lambda m: lambda x, *, m=m: m(x),
    "partial": lambda m: functools.partial(lambda m, x: m(x), m),
    "partial by keyword": lambda m: functools.partial(lambda x, m: m(x), m=m),
    "nested function": lambda m: lambda x: (lambda y: m(y))(x),
    "helper": lambda m: (lambda helper: lambda x: helper(x))(lambda x: m(x)),
    "bound method": lambda m: (lambda method: lambda x: method(x))(m.decode),
    "list": lambda m: (lambda models: lambda x: models[0](x))([m]),
    "dict": lambda m: (lambda models: lambda x: models["m"](x))({"m": m}),
}


@pytest.mark.parametrize("family", FAMILIES[:2], ids=["objects", "equinox"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_gradients_flow_to_a_captured_model_however_it_is_captured(family, way):
    model = family.make(*weights())

    def plain(arrays):
        return family.apply(family.make(*arrays), X).sum()

    expected = jax.grad(plain)(weights())

    def losses(m):
        yield lift.jit(way(m))(X).sum()
        yield lift.remat(way(m))(X).sum()
        yield lift.vmap(way(m))(X[None]).sum()
        yield lift.scan(way(m), in_axes=0, out_axes=0)(X[None]).sum()

    gradient = lift.grad(lambda m: sum(losses(m)))(model)
    for one, other in zip(family.picked(gradient), expected, strict=True):
        np.testing.assert_allclose(one, 4 * other, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES[:2], ids=["objects", "equinox"])
def test_a_global_model_is_read_as_it_is_at_each_call(family, monkeypatch):
    lifted = lift.jit(lambda x: TEACHER(x))
    through = lift.jit(lambda x: apply_teacher(x))
    for seed in range(2):
        model = family.make(*weights(seed))
        monkeypatch.setitem(globals(), "TEACHER", model)
        np.testing.assert_allclose(lifted(X), model(X), rtol=1e-6)
        np.testing.assert_allclose(through(X), model(X), rtol=1e-6)


def test_an_own_object_hidden_in_a_foreign_object_is_still_read_as_it_is():
    holder = types.SimpleNamespace(model=Affine(*weights()))
    lifted = lift.jit(lambda x: holder.model(x))
    for seed in range(2):
        holder.model.weight.value, holder.model.bias.value = weights(seed)
        np.testing.assert_allclose(lifted(X), Affine(*weights(seed))(X), rtol=1e-6)


def test_a_captured_model_is_traced_once_while_its_shapes_stay():
    traces = []
    teacher = Affine(*weights())

    @lift.jit
    def f(x):
        traces.append(1)
        return teacher(x)

    for seed in range(4):
        teacher.weight.value, teacher.bias.value = weights(seed)
        f(X)
    assert len(traces) == 1


WRITES = {
    "jit": lambda f: lift.jit(f)(1.0),
    "remat": lambda f: lift.remat(f)(1.0),
    "vmap": lambda f: lift.vmap(f)(jnp.ones(2)),
    "scan": lambda f: lift.scan(f, in_axes=0, out_axes=0)(jnp.ones(2)),
    "grad": lambda f: lift.grad(f)(1.0),
    "value_and_grad": lambda f: lift.value_and_grad(f)(1.0),
}


@both_ways
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("how_captured", ["closure", "default", "method", "foreign object"])
def test_a_write_to_a_captured_reference_is_an_error_with_a_way_out(name, how_captured, how):
    counter = Counter()
    holder = types.SimpleNamespace(counter=counter)
    before = counter.count.value

    def step(x):
        return counter.add(x)

    def by_default(x, counter=counter):
        return counter.add(x)

    method = counter.add

    def by_method(x):
        return method(x)

    def by_holder(x):
        return holder.counter.add(x)

    f = {"closure": step, "default": by_default, "method": by_method, "foreign object": by_holder}[how_captured]
    named = {"foreign object": "BatchStat", "method": r"count"}.get(how_captured, r"counter\.count")
    with pytest.raises(
        CaptureError, match=rf"{name} of {f.__name__}: (.|\n)*{named}(.|\n)*Pass .* as an argument: lift\.{name}\("
    ):
        how(lambda: WRITES[name](f))()
    assert counter.count.value is before


def test_the_way_out_of_a_captured_write_runs_as_the_message_says():
    counter = Counter()
    with pytest.raises(CaptureError) as error:
        lift.jit(lambda: counter.add(1.0))()
    assert "jit of <lambda>: counter.count" in str(error.value)
    assert "as an argument: lift.jit(f)(counter" in str(error.value)
    lift.jit(lambda counter: counter.add(1.0))(counter)
    assert float(counter.count.value) == 1.0


@both_ways
@pytest.mark.parametrize("name", ["jit", "remat", "vmap", "scan"])
@pytest.mark.parametrize("pick", [lambda m: m, lambda m: m.count, lambda m: [m]], ids=["module", "variable", "list"])
def test_a_captured_object_that_is_returned_is_an_error(name, pick, how):
    counter = Counter()
    with pytest.raises(CaptureError, match=rf"{name} of <lambda>: (.|\n)*return"):
        how(lambda: WRITES[name](lambda x: pick(counter)))()


@both_ways
@pytest.mark.parametrize("name", ["jit", "remat"])
def test_a_captured_structure_that_is_changed_is_an_error(name, how):
    counter = Counter()

    def step(x):
        counter.extra = lift.Variable(x)

    with pytest.raises(CaptureError, match=rf"{name} of step: counter"):
        how(lambda: WRITES[name](step))()
    assert not hasattr(counter, "extra")


@both_ways
@pytest.mark.parametrize("transform", [lift.jit, lift.remat, lift.vmap], ids=["jit", "remat", "vmap"])
def test_a_reference_captured_and_passed_is_an_error_that_names_both_when_it_is_read(transform, how):
    counter = lift.stack([Counter(), Counter()])

    def both(passed):
        return passed.count + counter.count

    with pytest.raises(CaptureError, match=r"of both: (.|\n)*passed(.|\n)*captured|captured(.|\n)*passed"):
        how(lambda c: transform(both)(c))(counter)

    def only_closed_over(passed):
        return passed.count.value if passed is not None else counter.count.value

    np.testing.assert_array_equal(transform(only_closed_over)(counter), jnp.zeros(2))


@both_ways
def test_an_object_made_inside_is_nobody_s_capture(how):
    def program(x):
        counter = Counter(1.0)
        inner = lift.jit(lambda c, x: c.add(x))(counter, x)
        return inner, counter, lift.vmap(lambda x: counter.count + x)(jnp.arange(2.0))

    value, counter, values = how(lambda x: lift.jit(program)(x))(2.0)
    assert float(value) == float(counter.count.value) == 3.0
    np.testing.assert_array_equal(values, [3, 4])


@both_ways
def test_an_object_passed_to_the_outer_call_may_be_read_and_not_written_by_an_inner_one_that_captures_it(how):
    counter = Counter(1.0)
    program = how(lambda c: lift.jit(lambda c: (c.add(1.0), lift.vmap(lambda x: x * c.count)(X))[1])(c))
    np.testing.assert_array_equal(program(counter), 2 * X)
    with pytest.raises(CaptureError, match=r"vmap of <lambda>: c\.count"):
        how(lambda c: lift.jit(lambda c: lift.vmap(lambda x: c.add(x))(X))(c))(counter)
    assert float(counter.count.value) == 2.0


FUNCTIONS = {
    "bound method": lambda m: m.decode,
    "lambda over the model": lambda m: lambda x: m(x),
    "partial over the model": lambda m: functools.partial(Affine.__call__, m),
}


@both_ways
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_attribute_around_the_model_itself_follows_the_model(make, how):
    model = Affine(*weights())
    model.fn = make(model)
    fn = model.fn
    gradient = how(lambda m: lift.grad(lambda m: m.fn(X).sum())(m))(model)
    assert_gradient = jax.grad(lambda arrays: Affine(*arrays)(X).sum())(weights())
    np.testing.assert_allclose(gradient["weight"], assert_gradient[0], rtol=1e-5)
    np.testing.assert_allclose(gradient["bias"], assert_gradient[1], rtol=1e-5)
    step = lift.jit(lambda m, x: m.fn(x))
    for seed in range(3):
        model.weight.value, model.bias.value = weights(seed)
        np.testing.assert_allclose(step(model, X), Affine(*weights(seed))(X), rtol=1e-6)
    assert model.fn is fn
    copy = lift.clone(model)
    copy.weight.value, copy.bias.value = weights(9)
    np.testing.assert_allclose(copy.fn(X), Affine(*weights(9))(X), rtol=1e-6)
    np.testing.assert_allclose(model.fn(X), Affine(*weights(2))(X), rtol=1e-6)


@both_ways
def test_a_bound_method_of_another_equinox_module_as_a_field_has_gradients(how):
    class Wrapper(eqx.Module):
        fn: object

    model = FAMILIES[1].make(*weights())
    gradient = how(lambda m: lift.grad(lambda m: m.fn(X).sum())(m))(Wrapper(model.decode))
    expected = jax.grad(lambda arrays: FAMILIES[1].make(*arrays)(X).sum())(weights())
    for one, other in zip(jax.tree.leaves(gradient), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
