"""Plans and arguments: trees, static values and ways to pass them are told apart."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.property.reports import Config, Leaf, Moments, Name, Net, OtherNet, assert_same, report, times

_ONE, _TWO = jnp.ones(2), jnp.zeros(2)


def _net(k: Any = 1, cls: type[Net] = Net, w: Any = _ONE) -> Net:
    return cls(w, [_ONE], k)


def _pair(shared: bool) -> list[Leaf]:
    leaf = Leaf(1.0)
    return [leaf, leaf if shared else Leaf(1.0)]


#: What an argument was, and what it is then.
_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a key more": ({"a": _ONE}, {"a": _ONE, "b": _TWO}),
    "other keys": ({"a": _ONE}, {"b": _ONE}),
    "keys in another order": ({"a": _ONE, "b": _TWO}, {"b": _TWO, "a": _ONE}),
    "True for 1 as a key": ({1: _ONE}, {True: _ONE}),
    "1.0 for 1 as a key": ({1: _ONE}, {1.0: _ONE}),
    "an equal enum for a key": ({"a": _ONE}, {Name.a: _ONE}),
    "an ordered dict": ({"a": _ONE}, collections.OrderedDict(a=_ONE)),
    "an ordered dict in another order": (
        collections.OrderedDict(a=_ONE, b=_TWO),
        collections.OrderedDict(b=_TWO, a=_ONE),
    ),
    "a list longer": ([_ONE], [_ONE, _TWO]),
    "a tuple for a list": ([_ONE], (_ONE,)),
    "a named tuple for a tuple": ((_ONE, _TWO), Moments(_ONE, _TWO)),
    "nothing in a list": ([_ONE], []),
    "one deeper": ({"a": _ONE}, {"a": [_ONE]}),
    "None for an array": ({"a": _ONE}, {"a": None}),
    "an array for None": ({"a": None}, {"a": _ONE}),
    "a number for an array": ({"a": _ONE}, {"a": 2.0}),
    "NumPy for JAX": ({"a": _ONE}, {"a": np.ones(2, np.float32)}),
    "NumPy for JAX, far behind": ([_ONE] * 20, [*[_ONE] * 19, np.ones(2, np.float32)]),
    "a NumPy scalar for a number": ({"a": 2.0}, {"a": np.float32(3)}),
    "True for 1": ({"a": 1}, {"a": True}),
    "1.0 for 1": (1, 1.0),
    "another shape": (_ONE, jnp.ones(3)),
    "another dtype": (_ONE, jnp.ones(2, jnp.int32)),
    "another dtype, far behind": ([_ONE] * 20, [*[_ONE] * 19, jnp.ones(2, jnp.int32)]),
    "a weak type": (jnp.float32(1), jnp.asarray(1.0)),
    "a strong type": (jnp.asarray(1.0), jnp.float32(1)),
    "another word": ({"a": "a", "x": _ONE}, {"a": "b", "x": _ONE}),
    "an equal enum for a word": ({"a": "a", "x": _ONE}, {"a": Name.a, "x": _ONE}),
    "an equal enum for an argument": ("a", Name.a),
    "another function": ([times(2)], [lambda x: x - 1]),
    "another module": ({"m": Leaf(1.0)}, {"m": Leaf(3.0)}),
    "a module twice": (_pair(False), _pair(True)),
    "a module no more twice": (_pair(True), _pair(False)),
    "Equinox: by tree_at": (_net(), eqx.tree_at(lambda net: net.w, _net(), _TWO)),
    "Equinox: another shape": (_net(), _net(w=jnp.ones(3))),
    "Equinox: None for an array": (_net(), _net(w=None)),
    "Equinox: a number for an array": (_net(), _net(w=2.0)),
    "Equinox: True for 1": (_net(), _net(True)),
    "Equinox: 1.0 for 1": (_net(), _net(1.0)),
    "Equinox: another class": (_net(), _net(cls=OtherNet)),
}


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_another_argument_is_told_apart(name: str) -> None:
    first, second = _ARGUMENTS[name]
    step = lift.jit(lambda tree: report(tree))
    for _ in range(4):
        step(first)
    assert step.stats().planned > 0, "the other argument meets a plan"
    for tree in (second, second, first, second, second, first):
        assert_same(step(tree), lift.jit(lambda tree: report(tree))(tree))


_IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a list in a dict longer": (lambda: {"a": [_ONE]}, lambda tree: tree["a"].append(_TWO)),
    "a dict in a list larger": (lambda: [{"a": _ONE}], lambda tree: tree[0].update(b=_TWO)),
    "a NumPy array": (lambda: [np.ones(2, np.float32)], lambda tree: tree[0].__setitem__(0, 5.0)),
    "Equinox: a list longer": (_net, lambda net: net.layers.append(_TWO)),
    "Equinox: an array past the module": (_net, lambda net: object.__setattr__(net, "w", _TWO)),
    "Equinox: True for 1 past the module": (_net, lambda net: object.__setattr__(net, "k", True)),
    "Equinox: another class past the module": (_net, lambda net: object.__setattr__(net, "__class__", OtherNet)),
}


@pytest.mark.parametrize("name", _IN_PLACE)
def test_an_argument_changed_in_place_is_seen(name: str) -> None:
    make, change = _IN_PLACE[name]
    tree, step = make(), lift.jit(lambda tree: report(tree))
    for _ in range(4):
        step(tree)
    assert step.stats().planned > 0, "the change meets a plan"
    change(tree)
    for _ in range(3):
        assert_same(step(tree), lift.jit(lambda tree: report(tree))(tree))


def _takes(*args: Any, **kwargs: Any) -> Any:
    return report((args, kwargs))


_CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "more arguments": [((1.0,), {}), ((1.0, 2.0), {}), ((), {}), ((1.0, [2.0]), {})],
    "arguments by name": [((1.0, 2.0), {}), ((1.0,), {"b": 2.0}), ((), {"a": 1.0, "b": 2.0})],
    "another order of names": [((), {"a": 1.0, "b": 2.0}), ((), {"b": 2.0, "a": 1.0}), ((), {"b": 1.0, "a": 2.0})],
    "other names": [((), {"a": 1.0}), ((), {"b": 1.0}), ((1.0,), {"b": 1.0})],
}


@pytest.mark.parametrize("name", _CALLS)
def test_arguments_passed_in_another_way_are_told_apart(name: str) -> None:
    step = lift.jit(lambda *args, **kwargs: _takes(*args, **kwargs))
    for args, kwargs in _CALLS[name] * 4:
        assert_same(step(*args, **kwargs), lift.jit(lambda *a, **k: _takes(*a, **k))(*args, **kwargs))
    assert step.stats().planned >= 2 * len(_CALLS[name])


def test_static_arguments_are_told_apart() -> None:
    values: list[Any] = [1, True, 1.0, "a", Name.a, (1,), (True,), 0.0, -0.0, [1], Config(1), Config(2)]
    step = lift.jit(lambda x, k: (x * 2, f"{k!r}"), static_argnums=1)
    for value in values * 4:
        assert step(1.0, value)[1] == repr(value)
    assert step.stats().planned >= 2 * len(values)
    assert step.stats().traces == len(values)
    for value, change in ((values[-3], lambda one: one.append(2)), (values[-1], lambda one: setattr(one, "k", 3))):
        change(value)
        assert step(1.0, value)[1] == repr(value)
