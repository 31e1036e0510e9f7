"""What counts as an array, a static value or a container, in arguments, in models and in outputs."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore.errors import LiftError, StaticError
from tests.models import Affine, Config, Counter, both_ways, weights

Pair = collections.namedtuple("Pair", "first second")
XS = jnp.arange(3.0)

TRANSFORMS = {
    "jit": lambda f, a: lift.jit(f)(a),
    "remat": lambda f, a: lift.remat(f)(a),
    "vmap": lambda f, a: lift.vmap(f, in_axes=None, out_axes=None, axis_size=2)(a),
    "grad": lambda f, a: lift.grad(lambda x, a: (x, f(a)), has_aux=True)(1.0, a)[1],
    "scan": lambda f, a: lift.scan(f, in_axes=(None,), out_axes=0, length=2)(a),
}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@each_transform
def test_a_numpy_array_of_the_caller_s_is_never_written_to(transform):
    array = np.ones(3)

    def add(a):
        try:
            a += 1
        except ValueError:  # it is a read-only view
            a = a + 1
        return jnp.asarray(a)

    np.testing.assert_array_equal(np.ravel(transform(add, array))[:3], np.full(3, 2.0))
    np.testing.assert_array_equal(array, np.ones(3))


@each_transform
def test_the_caller_s_dicts_and_lists_are_never_written_to(transform):
    batch = {"x": XS, "inner": [1.0, {"y": 2.0}]}

    def change(batch):
        batch["x"] = batch["x"] * 3
        batch["new"] = 1
        batch["inner"][1].clear()
        batch["inner"].append(batch.pop("x"))
        return batch["inner"][-1]

    assert transform(change, batch).shape[-1] == 3
    assert batch["inner"] == [1.0, {"y": 2.0}]
    assert list(batch) == ["x", "inner"]


@each_transform
def test_a_jax_reference_passes_in_and_is_read_as_it_is(transform):
    ref = jax.new_ref(XS)
    for value in (XS, 3 * XS):
        ref[...] = value
        np.testing.assert_array_equal(np.atleast_2d(transform(lambda ref: ref[...] * 2, ref))[0], 2 * value)


@pytest.mark.parametrize("name", ["jit", "remat", "scan"])
def test_a_jax_reference_is_written_where_it_lies(name):
    def write(ref):
        ref[...] = ref[...] + 1.0

    ref, model, steps = jax.new_ref(XS), lift.Module(), 2 if name == "scan" else 1
    model.ref = ref
    TRANSFORMS[name](write, ref)
    np.testing.assert_array_equal(ref[...], XS + steps)
    TRANSFORMS[name](lambda model: write(model.ref), model)
    np.testing.assert_array_equal(ref[...], XS + 2 * steps)


@both_ways
def test_modules_in_every_container_that_is_a_tree_are_carried_out(how):
    model = lift.Module()
    model.ordered = collections.OrderedDict(a=Counter())
    model.default = collections.defaultdict(list, x=[Counter()])
    model.tuple = (Counter(), (Counter(),))
    model.pair = Pair(Counter(), "static")

    def step(m):
        m.ordered["a"].add(1.0)
        m.default["x"][0].add(2.0)
        m.tuple[1][0].add(3.0)
        m.pair.first.add(4.0)
        m.default["y"].append(Counter(7.0))

    for times in (1, 2):
        how(lambda m: lift.jit(step)(m))(model)
        counts = (model.ordered["a"], model.default["x"][0], model.tuple[1][0], model.pair.first)
        assert [float(counter.count.value) for counter in counts] == [times, 2 * times, 3 * times, 4 * times]
        assert [float(counter.count.value) for counter in model.default["y"]] == [7.0] * times
    assert type(model.default) is collections.defaultdict
    assert model.pair.second == "static"


HOLDERS = {
    "set": lambda counter: {counter},
    "deque": lambda counter: collections.deque([counter]),
    "object": lambda counter: types.SimpleNamespace(counter=counter),
}


def first(holder):
    return holder.counter if isinstance(holder, types.SimpleNamespace) else next(iter(holder))


@both_ways
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_module_inside_a_static_value_is_read_as_it_is_and_not_written(hold, how):
    model, counter = lift.Module(), Counter()
    model.holder = hold(counter)
    read = lift.jit(lambda m: first(m.holder).count.value)
    assert [float(how(lambda m: read(m))(model)), counter.add(5.0), float(how(lambda m: read(m))(model))] == [0, 5, 5]

    def write(model):
        first(model.holder).add(1.0)

    with pytest.raises(LiftError, match=r"jit of write: a captured BatchStat was written"):
        how(lambda m: lift.jit(write)(m))(model)
    assert float(counter.count.value) == 5.0


@pytest.mark.parametrize("transform", ["jit", "remat", "vmap", "scan"])
@pytest.mark.parametrize(
    "hold", [lambda x: {1: types.SimpleNamespace(x=x)}, lambda x: collections.deque([x])], ids=["object", "deque"]
)
def test_an_array_inside_a_static_value_names_the_path_to_it(transform, hold):
    model = lift.Module()
    model.table = hold(jnp.ones(2))
    with pytest.raises(StaticError, match=rf"{transform} of <lambda>: (.|\n)*m\.table"):
        TRANSFORMS[transform](lambda m: 1.0, model)


@both_ways
@each_transform
def test_static_values_come_out_as_they_are(transform, how):
    model = Affine(*weights())
    out = how(lambda m: transform(lambda m: ("text", m.act, m.config, None, XS), m))(model)
    text, act, config, nothing, array = out
    assert (text, act, config, nothing) == ("text", jnp.tanh, Config(), None)
    assert config is model.config
    np.testing.assert_array_equal(np.atleast_2d(array)[0], XS)


@both_ways
@pytest.mark.parametrize(
    "carry", [None, (), {}, "text", Config(), lift.Module()], ids=lambda carry: type(carry).__name__
)
def test_a_carry_without_arrays_is_a_carry(carry, how):
    last, ys = how(lambda c, xs: lift.scan(lambda c, x: (c, x * 2), c, xs))(carry, XS)
    assert last == carry
    np.testing.assert_array_equal(ys, 2 * XS)


@both_ways
def test_a_scan_of_no_steps_leaves_the_carry_as_it_was(how):
    counter = Counter(np.float32(2))
    last, ys = how(lambda c: lift.scan(lambda c, x: (c, c.add(x)), c, jnp.zeros((0,))))(counter)
    assert last is counter
    assert ys.shape == (0,)
    assert float(counter.count.value) == 2.0


@both_ways
def test_a_function_of_no_arguments(how):
    assert how(lambda: lift.jit(lambda: XS)())().shape == (3,)
    assert how(lambda: lift.remat(lambda: XS)())().shape == (3,)
    assert how(lambda: lift.vmap(lambda: XS, axis_size=2)())().shape == (2, 3)
    assert how(lambda: lift.vmap(lambda: jax.lax.axis_index("i"), axis_name="i", axis_size=2)())().tolist() == [0, 1]


def test_a_body_around_another_value_each_time_is_right_each_time():
    held = [jnp.float32(2)]

    def body(c, x):
        return c * held[0], x

    def loss(y):
        held[0] = y
        return lift.scan(body, 1.0, XS)[0]

    assert float(lift.scan(body, 1.0, XS)[0]) == 8.0
    held[0] = jnp.float32(3)
    assert float(lift.scan(body, 1.0, XS)[0]) == 27.0
    assert [float(jax.grad(loss)(y)) for y in (2.0, 3.0)] == [12.0, 27.0]
