"""Keys of static values against a plain description of them; arrays hidden in random containers."""

import copy
import dataclasses
import functools
import typing

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from liftcore.statics import find_array, key


class Pair(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@dataclasses.dataclass(frozen=True)
class Config:
    width: typing.Any


def scaled(factor):
    return lambda x: x * factor


# A domain so small that two draws are often equal, or equal for Python only.
atoms = st.one_of(
    st.sampled_from([None, ..., 0, 1, True, False, 0.0, -0.0, 1.0, float("nan"), 0j, "", "a", b"a", int, len]),
    st.sampled_from([np.float32(0), np.float32(-0.0), np.int8(1), np.bool_(True), np.dtype("i1")]),
    st.integers(-1, 2),
    st.floats(),
)


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", 1, True, 1.0]), inner, max_size=2),
        st.frozensets(atoms, max_size=2),
        st.builds(Pair, inner, inner),
        st.builds(Config, inner),
        st.builds(functools.partial, st.just(len), inner),
        st.builds(scaled, inner),
    )


values = st.recursive(atoms, containers, max_leaves=4)


def described(value):
    """What tells static values apart, written by hand for the types above."""
    kind = type(value)
    match value:
        case float() | complex() | np.generic():
            return kind.__name__, np.asarray(value).tobytes()
        case frozenset():
            return kind.__name__, tuple(sorted(map(repr, map(described, value))))
        case list() | tuple():
            return kind.__name__, tuple(map(described, value))
        case dict():
            return kind.__name__, tuple((described(name), described(inner)) for name, inner in value.items())
        case Config(width=width):
            return kind.__name__, described(width)
        case functools.partial():
            return kind.__name__, described(value.args)
        case _ if hasattr(value, "__closure__"):
            return kind.__name__, described(value.__closure__[0].cell_contents)
        case _:
            return kind.__name__, repr(value)


@settings(deadline=None)
@given(values, values)
def test_keys_are_equal_exactly_where_the_descriptions_are(one, two):
    assert (key(one) == key(two)) == (described(one) == described(two))


@settings(deadline=None)
@given(values)
def test_a_copy_has_the_same_key(value):
    again = copy.deepcopy(value)
    assert key(again) == key(value)
    assert hash(key(again)) == hash(key(value))


def holding(found):
    """Containers around a value, each with the path to it."""
    filler = st.lists(atoms, max_size=2)

    def within(inner):
        value, path = inner
        return st.one_of(
            filler.map(lambda rest: ([*rest, value], (len(rest), *path))),
            filler.map(lambda rest: ((value, *rest), (0, *path))),
            st.just(({"a": 1, "b": value}, ("b", *path))),
            st.just((Pair(1, value), ("y", *path))),
            st.just((Config(value), ("width", *path))),
            st.just((functools.partial(len, value), ("args", 0, *path))),
        )

    return st.recursive(st.just((found, ())), lambda inner: inner.flatmap(within), max_leaves=6)


@settings(deadline=None)
@given(holding(np.ones(2)))
def test_a_hidden_array_is_found(case):
    value, path = case
    assert find_array(value) == path
    assert find_array(value, tracers_only=True) is None


@settings(deadline=None)
@given(values)
def test_no_array_is_found_where_none_is(value):
    assert find_array(value) is None


@settings(deadline=None)
@given(st.data())
def test_a_hidden_tracer_is_found(data):
    def f(x):
        value, path = data.draw(holding(x))
        assert find_array(value, tracers_only=True) == path
        return x

    jax.make_jaxpr(f)(1.0)
