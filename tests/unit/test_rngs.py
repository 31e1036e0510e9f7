"""Random streams, and their splitting."""

from __future__ import annotations

import copy
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore import captures
from liftcore.errors import CaptureError, FilterError, WriteError
from liftcore.filters import All, In, Not, PathContains
from liftcore.protocol import Call
from liftcore_plugins.lifts.state_axes import StateAxes
from liftcore_plugins.objects import (
    Module,
    Param,
    RngCount,
    RngKey,
    Rngs,
    RngStream,
    StreamError,
    restore_rngs,
    split_rngs,
)
from liftcore_plugins.transforms.jit import jit
from liftcore_plugins.transforms.vmap import vmap


def drawn(key, count):
    return jax.random.fold_in(key, count)


def state(stream):
    return stream.key.shape, stream.count.shape


class Dropout(Module):
    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x * jax.random.bernoulli(self.rngs.dropout(), 0.5, x.shape)


class Model(Module):
    def __init__(self, rngs):
        self.blocks = [{"drop": Dropout(rngs)}, (Dropout(Rngs(dropout=7)),)]
        self.weight = Param(jnp.ones(2))
        self.parent = self


# Drawing


def test_the_nth_key_of_a_stream_is_the_seed_folded_with_n():
    rngs = Rngs(params=0)
    assert [rngs.params() for _ in range(3)] == [drawn(jax.random.key(0), n) for n in range(3)]
    assert (rngs.params.count.value, rngs.params.count.dtype) == (3, jnp.uint32)


def test_a_name_without_a_stream_draws_from_the_default():
    rngs = Rngs(5, dropout=1)
    key = jax.random.key(5)
    assert [rngs.params(), rngs(), rngs.default()] == [drawn(key, n) for n in range(3)]
    assert rngs.dropout() == drawn(jax.random.key(1), 0)


@pytest.mark.parametrize("rngs", [Rngs(dropout=1), Rngs()])
def test_a_missing_stream_is_an_error_that_names_the_others(rngs):
    names = "dropout" if vars(rngs) else "none"
    with pytest.raises(StreamError, match=rf"Rngs\.params(.|\n)*streams: {names}(.|\n)*Rngs\(params=0\)"):
        rngs.params()
    with pytest.raises(StreamError, match="default"):
        rngs()
    assert not hasattr(rngs, "params")


@pytest.mark.parametrize(
    "seed",
    [
        3,
        np.int64(3),
        jnp.int32(3),
        jax.random.key(3),
        jax.random.key_data(jax.random.key(3)),
        np.asarray(jax.random.key_data(jax.random.key(3))),
        RngKey(jax.random.key(3)),
    ],
)
def test_seeds(seed):
    assert Rngs(seed).default.key.value == jax.random.key(3)


@pytest.mark.parametrize("seed", [1.5, "3", jnp.ones(2), jnp.arange(2)])
def test_what_is_no_seed(seed):
    with pytest.raises(StreamError, match="seed of the stream 'default'"):
        Rngs(seed)


def test_two_seeds_for_the_default_stream():
    with pytest.raises(StreamError, match="default stream"):
        Rngs(0, default=1)


def test_a_stream_is_a_module_of_two_variables_with_its_name():
    stream = Rngs(noise=0).noise
    assert {name: (type(cell), dict(cell.metadata)) for name, cell in vars(stream).items()} == {
        "key": (RngKey, {"stream": "noise"}),
        "count": (RngCount, {"stream": "noise"}),
    }
    assert stream.name == "noise"


def test_streams_can_be_added_and_copied():
    rngs = Rngs(0)
    rngs.noise = RngStream("noise", 7)
    rngs.noise()
    again = copy.deepcopy(rngs)
    assert again.noise() == drawn(jax.random.key(7), 1)
    assert rngs.noise.count.value == 1
    assert repr(rngs) == "Rngs(default=RngStream(key<fry>[]), noise=RngStream(key<fry>[]))"


def test_streams_of_a_batch_of_keys_are_split():
    keys = jax.random.split(jax.random.key(0), 3)
    assert state(Rngs(keys).default) == ((3,), (3,))
    np.testing.assert_array_equal(
        jax.random.key_data(jax.vmap(lambda key: Rngs(key)())(keys)),
        jax.random.key_data(jax.vmap(lambda key: drawn(key, 0))(keys)),
    )


def test_drawing_under_a_trace():
    assert jax.jit(lambda key: Rngs(key).dropout())(jax.random.key(3)) == drawn(jax.random.key(3), 0)
    rngs = Rngs(0)
    with pytest.raises(WriteError, match="RngCount"):
        jax.jit(lambda: rngs())()
    with (
        captures.entered(captures.Frame(Call("vmap", "f"), {}, {})),
        pytest.raises(CaptureError, match="captured RngCount"),
    ):
        rngs()


# Splitting


def test_split_and_restore():
    rngs = Rngs(0, dropout=1)
    rngs.dropout()
    backup = split_rngs(rngs, splits=4)
    assert state(rngs.default) == state(rngs.dropout) == ((4,), (4,))
    assert rngs.dropout.count.dtype == jnp.uint32
    assert np.all(rngs.dropout.count.value == 0)
    lanes = jax.random.key_data(rngs.dropout.key.value)
    np.testing.assert_array_equal(lanes, jax.random.key_data(jax.random.split(drawn(jax.random.key(1), 1), 4)))
    assert len(np.unique(lanes, axis=0)) == 4
    restore_rngs(backup)
    assert (rngs.default.count.value, rngs.dropout.count.value) == (1, 2)
    assert rngs.dropout() == drawn(jax.random.key(1), 2)


def test_restoring_twice_does_not_turn_the_count_back():
    rngs = Rngs(0)
    with split_rngs(rngs, splits=2) as backup:
        restore_rngs(backup)
        rngs()
    assert rngs.default.count.value == 2


def test_splits_of_several_axes():
    rngs = Rngs(0)
    with split_rngs(rngs, splits=(2, 3)):
        assert state(rngs.default) == ((2, 3), (2, 3))
    assert state(rngs.default) == ((), ())


def test_an_error_inside_of_the_block_restores():
    rngs = Rngs(0)
    with pytest.raises(ZeroDivisionError), split_rngs(rngs, splits=2):
        _ = 1 / 0
    assert (state(rngs.default), rngs.default.count.value) == (((), ()), 1)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("dropout", {"dropout"}),
        (["dropout", "params"], {"dropout", "params"}),
        (Not("dropout"), {"params", "default"}),
        (PathContains("params"), {"params"}),
        (RngKey, {"dropout", "params", "default"}),
        (lambda path, leaf: path[0] == "default", {"default"}),
    ],
)
def test_only_picks_streams(only, names):
    rngs = Rngs(0, dropout=1, params=2)
    with split_rngs(rngs, splits=2, only=only):
        assert {name for name, stream in vars(rngs).items() if stream.key.ndim} == names


def test_a_filter_that_picks_nothing_is_an_error():
    with pytest.raises(FilterError, match=r"only='drop'(.|\n)*streams: default, dropout"):
        split_rngs(Rngs(0, dropout=1), splits=2, only="drop")
    with split_rngs({"nothing": 1}, splits=2):
        pass


def test_streams_are_found_wherever_they_hang():
    class Tree(eqx.Module):
        rngs: Rngs

    class Call(Module):
        def __init__(self, fn):
            self.fn = fn

    model, tree = Model(Rngs(0, dropout=1)), Tree(Rngs(3))
    alone, method = RngStream("alone", 4), Call(Dropout(Rngs(dropout=5)).__call__)
    partial = jax.tree_util.Partial(lambda rngs: rngs, Rngs(6))
    found = [
        model.blocks[0]["drop"].rngs.dropout,
        model.blocks[0]["drop"].rngs.default,
        model.blocks[1][0].rngs.dropout,
        tree.rngs.default,
        alone,
        method.fn.__self__.rngs.dropout,
        partial.args[0].default,
    ]
    with split_rngs(model, {"x": [tree, alone]}, method, partial, splits=2):
        assert [state(stream) for stream in found] == [((2,), (2,))] * 7
    assert [state(stream) for stream in found] == [((), ())] * 7
    with split_rngs(model, splits=2, only=All(In(Dropout), PathContains(1))):
        assert [state(stream)[0] for stream in found[:3]] == [(), (), (2,)]


def test_a_split_stream_cannot_be_drawn_from_or_split():
    rngs = Rngs(0)
    with split_rngs(rngs, splits=2):
        with pytest.raises(StreamError, match=r"stream 'default'(.|\n)*shape \(2,\)(.|\n)*restore_rngs"):
            rngs()
        with pytest.raises(StreamError, match="splits="):
            split_rngs(rngs, splits=3)
        assert state(rngs.default) == ((2,), (2,))


def test_a_split_that_fails_half_way_puts_back_what_it_split():
    rngs = Rngs(0, other=1)
    inner = split_rngs(rngs.other, splits=2)
    with pytest.raises(StreamError):
        split_rngs(rngs, splits=2)
    assert [state(rngs.default)[0], state(rngs.other)[0]] == [(), (2,)]
    restore_rngs(inner)


def test_decorator():
    @split_rngs(splits=3, only="dropout")
    def f(x, *, model):
        """Doc."""
        return x, state(model.rngs.dropout), state(model.rngs.default)

    model = Dropout(Rngs(0, dropout=1))
    assert f(1, model=model) == (1, ((3,), (3,)), ((), ()))
    assert (state(model.rngs.dropout), model.rngs.dropout.count.value, model.rngs.default.count.value) == (
        ((), ()),
        1,
        0,
    )
    assert (f.__name__, f.__doc__) == ("f", "Doc.")


def test_decorator_on_methods_and_callable_modules():
    class Layer(Module):
        def __init__(self):
            self.rngs = Rngs(0)

        @split_rngs(splits=2)
        def forward(self):
            return state(self.rngs.default)

        def __call__(self):
            return state(self.rngs.default)

    layer = Layer()
    assert layer.forward() == ((2,), (2,))
    wrapped = split_rngs(splits=2)(layer)
    assert wrapped() == ((2,), (2,))
    assert "rngs" not in vars(wrapped)
    assert split_rngs(splits=2)(layer.__call__)() == ((2,), (2,))
    assert (state(layer.rngs.default), layer.rngs.default.count.value) == (((), ()), 3)


def test_decorator_restores_after_an_error():
    rngs = Rngs(0)

    @split_rngs(splits=2)
    def f(rngs):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        f(rngs)
    assert (state(rngs.default), rngs.default.count.value) == (((), ()), 1)


def test_splitting_inside_of_a_trace_and_drawing_in_lanes():
    @jax.jit
    def f(key):
        rngs = Rngs(key)
        with split_rngs(rngs, splits=4):
            lanes = jax.vmap(lambda lane: jax.random.normal(Rngs(lane)(), (2,)))(rngs.default.key.value)
        return lanes, rngs.default.count.value, rngs()

    lanes, count, after = f(jax.random.key(0))
    assert len(np.unique(lanes)) == 8
    assert count == 1
    assert after == drawn(jax.random.key(0), 1)


@pytest.mark.parametrize("around", [lambda f: f, jit], ids=["eager", "jit"])
def test_lanes_of_a_lifted_vmap_draw_their_own_numbers(around):
    @split_rngs(splits=4)
    @functools.partial(vmap, in_axes=(StateAxes({"rng": 0, ...: None}), 0))
    def rows(model, x):
        return x * jax.random.normal(model.rngs.dropout(), x.shape)

    model = Dropout(Rngs(0, dropout=1))
    found = around(lambda model, x: rows(model, x))(model, jnp.ones((4, 3)))
    assert len(np.unique(found)) == 12
    assert (state(model.rngs.dropout), model.rngs.dropout.count.value) == (((), ()), 1)
