"""Guards of plans: whatever changes between two calls, a planned function does what a new one does."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift


class _Leaf(lift.Module):
    def __init__(self, value: float) -> None:
        self.w = lift.Param(jnp.full(2, value))
        self.n = 1
        self.name = "a"
        self.f = 0.0
        self.t = (1,)
        self.inner = ([1], 2)


class _Other(_Leaf):
    pass


class _Name(enum.StrEnum):
    a = "a"


class _Key(enum.StrEnum):
    x = "x"
    y = "y"


@dataclasses.dataclass
class _Config:
    k: int = 1


class _Moments(NamedTuple):
    """As optax keeps its state."""

    mu: Any
    nu: Any


class _Net(eqx.Module):
    w: Any
    layers: list[Any]
    k: Any = eqx.field(static=True)


class _OtherNet(_Net):
    pass


def _times(k: Any) -> Callable[[Any], Any]:
    return lambda x: x * k


class _Told(lift.Module):
    """A graph of modules and variables only: a short look is enough for it."""

    def __init__(self) -> None:
        self.a, self.b = _Leaf(1.0), _Leaf(2.0)
        self.l1, self.l2 = [_Leaf(3.0), _Leaf(4.0)], [_Leaf(5.0)]
        self.p = lift.Param(jnp.ones(2), words=1)


class _Mixed(_Told):
    """Raw arrays, dicts, configs and trees in variables besides."""

    def __init__(self) -> None:
        super().__init__()
        self.d = {"x": _Leaf(6.0), "y": lift.BatchStat(jnp.ones(2))}
        self.raw = jnp.arange(2.0)
        self.config = _Config()
        self.tree = lift.Variable({"mu": (jnp.ones(2), jnp.zeros(2)), "count": jnp.zeros((), jnp.int32)})


class _Holder(_Told):
    """Functions, tuples, Equinox modules and states of optimizers besides, and one module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.a
        self.act = _times(2)
        self.method = self.scaled
        self.net = _Net(jnp.ones(2), [jnp.ones(2)], 1)
        self.pair = (np.ones(2, np.float32), [lift.Param(jnp.ones(2)), lift.Param(jnp.zeros(2))])
        self.opt = lift.Variable(_Moments({"w": jnp.ones(2)}, (jnp.zeros(2),)))
        self.words = lift.Variable({"word": "a", "more": [jnp.ones(2)]})
        self.numbered = lift.Variable({1: jnp.ones(2)})
        self.flags = {1}
        self.host = np.ones(2, np.float32)

    def scaled(self, x: Any) -> Any:
        return x * self.b.n


class _OtherHolder(_Holder):
    def scaled(self, x: Any) -> Any:
        return x - self.b.n


def _below(obj: Any) -> list[tuple[str, Any]]:
    """What stands in a value, with its path from there."""
    match obj:
        case lift.Module():
            return [(f".{name}", child) for name, child in vars(obj).items()]
        case lift.Variable():
            return [(".value", obj.value)]
        case eqx.Module():
            return [(f".{field.name}", getattr(obj, field.name)) for field in dataclasses.fields(obj)]
        case list() | tuple():
            return [(f"[{index}]", child) for index, child in enumerate(obj)]
        case dict():
            return [(f"[{key!r}]", child) for key, child in obj.items()]
    return []


def _report(tree: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """All arrays in a graph or tree and what its functions give, and all else as text, by path."""
    seen: dict[int, str] = {}
    arrays: dict[str, Any] = {}
    words: dict[str, str] = {}

    def go(obj: Any, path: str, leaf: bool) -> None:
        if isinstance(obj, (lift.Module, lift.Variable, list, dict)):
            if id(obj) in seen:
                words[path] = f"is {seen[id(obj)]}"
                return
            seen[id(obj)] = path
        below = _below(obj)
        if below or isinstance(obj, (lift.Module, lift.Variable, eqx.Module, list, tuple, dict)):
            more = dict(obj.metadata) if isinstance(obj, lift.Variable) else ""
            words[path] = f"{type(obj).__name__} {more} {', '.join(key for key, _ in below)}"
            for key, child in below:
                # A Python number is an array in an argument and in a variable, and static in a module.
                go(child, path + key, (leaf and not isinstance(obj, lift.Module)) or isinstance(obj, lift.Variable))
        elif hasattr(obj, "dtype") or (leaf and isinstance(obj, (bool, int, float))):
            arrays[path] = jnp.asarray(obj) * jnp.ones((), jnp.bfloat16)  # shows weak types as well
        elif isinstance(obj, (types.FunctionType, types.MethodType)):
            arrays[path] = jnp.asarray(obj(2.0))
        else:
            words[path] = f"{type(obj).__name__} {obj!r}"

    go(tree, "", True)
    return arrays, words


def _raised(leaf: Any) -> Any:
    return leaf if isinstance(leaf, str) else jnp.asarray(leaf) + 1


def _bump(model: Any) -> None:
    """Writes every variable once."""
    seen: set[int] = set()
    pending = [model]
    while pending:
        obj = pending.pop()
        if id(obj) not in seen:
            seen.add(id(obj))
            if isinstance(obj, lift.Variable):
                obj.value = jax.tree.map(_raised, obj.value)
            else:
                pending += [child for _, child in _below(obj)]


def _jitted() -> Any:
    def step(model: Any) -> Any:
        report = _report(model)
        _bump(model)
        return report

    return lift.jit(step)


def _scanned() -> Any:
    def step(model: Any, x: Any) -> Any:
        arrays, words = _report(model)
        _bump(model)
        return model, (arrays, words)

    loop = lift.scan(step, in_axes=(lift.Carry, 0))

    def run(model: Any) -> Any:
        return loop(model, jnp.zeros(1))[1]

    run.stats = loop.stats  # type: ignore[attr-defined]
    return run


def _put(obj: Any, name: str, value: Any) -> None:
    vars(obj)[name] = value


def _rename(model: Any, name: str, new: str) -> None:
    setattr(model, new, getattr(model, name))
    delattr(model, name)


def _again(model: Any, name: str) -> None:
    value = getattr(model, name)
    delattr(model, name)
    setattr(model, name, value)


def _move(model: Any) -> None:
    model.b.extra = model.a.w
    del model.a.w


def _into_list(model: Any, name: str) -> None:
    model.l2.append(getattr(model, name))
    delattr(model, name)


def _exchange(model: Any) -> None:
    model.a, model.b = model.b, model.a


def _swap(model: Any) -> None:
    model.l1[0], model.l1[1] = model.l1[1], model.l1[0]


def _unlike(model: Any, name: str) -> None:
    value = getattr(model, name)
    object.__delattr__(model, name)
    object.__setattr__(model, f"{name}_", value)


def _longer(model: Any) -> None:
    model.l1 = list(model.l1)
    model.l1.append(_Leaf(9.0))


def _same_id(model: Any) -> None:
    number = id(model.b)
    del model.b
    gc.collect()
    kept = []
    for _ in range(2000):
        new = _Leaf(7.0)
        if id(new) == number:
            break
        kept.append(new)
    model.b = new


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda m: None,
    "a value": lambda m: setattr(m.a.w, "value", jnp.full(2, 7.0)),
    "an attribute set": lambda m: setattr(m, "new", lift.Param(jnp.ones(2))),
    "an attribute deleted": lambda m: delattr(m, "b"),
    "an attribute renamed": lambda m: _rename(m, "b", "bb"),
    "the last attribute renamed in vars": lambda m: _put(m, "zz", vars(m).pop(list(vars(m))[-1])),
    "attributes reordered": lambda m: _again(m, "a"),
    "attributes reordered in vars": lambda m: _put(m, "a", vars(m).pop("a")),
    "__dict__ replaced": lambda m: setattr(m, "__dict__", {**vars(m), "new": lift.Param(jnp.zeros(2))}),
    "__class__ replaced": lambda m: setattr(m.a, "__class__", _Other),
    "__class__ replaced past the module": lambda m: object.__setattr__(m.a, "__class__", _Other),
    "another variable": lambda m: setattr(m.a, "w", lift.Param(jnp.zeros(2))),
    "a variable of another kind": lambda m: setattr(m.a, "w", lift.BatchStat(jnp.zeros(2))),
    "a list longer": lambda m: m.l1.append(_Leaf(8.0)),
    "a list shorter": lambda m: m.l1.pop(),
    "a list in another order": _swap,
    "an element moved": lambda m: m.l2.append(m.l1.pop()),
    "an equal list": lambda m: setattr(m, "l1", list(m.l1)),
    "an equal list in vars": lambda m: _put(m, "l1", list(m.l1)),
    "an equal list past the module": lambda m: object.__setattr__(m, "l1", list(m.l1)),
    "an equal list made longer": _longer,
    "a variable moved": _move,
    "a module shared": lambda m: setattr(m, "b", m.a),
    "a list shared": lambda m: setattr(m, "l2", m.l1),
    "a variable shared": lambda m: setattr(m.a, "w", m.b.w),
    "two modules exchanged": _exchange,
    "metadata True for 1": lambda m: m.p.set_metadata(words=True),
    "more metadata": lambda m: m.p.set_metadata(more=2),
    "another dtype": lambda m: setattr(m.a.w, "value", jnp.ones(2, jnp.int32)),
    "another shape": lambda m: setattr(m.a.w, "value", jnp.ones(3)),
    "a NumPy array": lambda m: setattr(m.a.w, "value", np.ones(2, np.float32)),
    "a number": lambda m: setattr(m.a.w, "value", 3.0),
    "None": lambda m: setattr(m.a.w, "value", None),
    "a dict": lambda m: setattr(m.a.w, "value", {"q": jnp.ones(2)}),
    "an id used again": _same_id,
    "a list in a tuple": lambda m: m.a.inner[0].append(2),
}
_STATICS = {
    "True for 1": ("n", True),
    "1.0 for 1": ("n", 1.0),
    "-0.0 for 0.0": ("f", -0.0),
    "(True,) for (1,)": ("t", (True,)),
    "another number": ("n", 5),
    "another string": ("name", "b"),
}
_WAYS: dict[str, Callable[[Any, str, Any], None]] = {
    "setattr": setattr,
    "vars": _put,
    "object.__setattr__": object.__setattr__,
}


def _putting(way: str, name: str, value: Any) -> Callable[[Any], Any]:
    return lambda m: _WAYS[way](m.a, name, value)


_CHANGES |= {f"{name}, by {way}": _putting(way, *new) for way in _WAYS for name, new in _STATICS.items()}
_CHANGES |= {f"an equal enum for a string, by {way}": _putting(way, "name", _Name.a) for way in ("setattr", "vars")}
_MORE: dict[str, Callable[[Any], Any]] = {
    "a config changed in place": lambda m: setattr(m.config, "k", 2),
    "True for 1 in a config": lambda m: setattr(m.config, "k", True),
    "a raw array": lambda m: setattr(m, "raw", jnp.ones(2)),
    "a raw array of another shape": lambda m: setattr(m, "raw", jnp.ones(3)),
    "a dict larger": lambda m: m.d.update(z=_Leaf(3.0)),
    "a dict with another key": lambda m: m.d.update(z=m.d.pop("x")),
    "a dict in another order": lambda m: m.d.update(x=m.d.pop("x")),
    "another object in a dict": lambda m: m.d.update(x=_Leaf(3.0)),
    "a tree of another structure": lambda m: setattr(m.tree, "value", {"nu": jnp.ones(2)}),
    "a tree with other keys": lambda m: setattr(m.tree, "value", {"count": jnp.zeros((), jnp.int32), "nu": ()}),
}
_PAST: dict[str, Callable[[Any], Any]] = {
    "an attribute set": lambda m: object.__setattr__(m, "new", lift.Param(jnp.ones(2))),
    "an attribute deleted": lambda m: object.__delattr__(m, "b"),
    "an attribute renamed": lambda m: _unlike(m, "a"),
    "another variable": lambda m: object.__setattr__(m.a, "w", lift.Param(jnp.zeros(2))),
    "a variable of another kind": lambda m: object.__setattr__(m.a, "w", lift.BatchStat(jnp.zeros(2))),
    "another class of a variable": lambda m: object.__setattr__(m.a.w, "__class__", lift.BatchStat),
    "another module": lambda m: object.__setattr__(m, "b", _Leaf(7.0)),
    "a module shared": lambda m: object.__setattr__(m, "b", m.a),
    "a list shared": lambda m: object.__setattr__(m, "l2", m.l1),
}
_CHANGES |= {f"{name}, past the module": change for name, change in _PAST.items()}
_CHANGES |= {
    "a module in a list replaced": lambda m: m.l1.__setitem__(0, _Leaf(9.0)),
    "a list emptied": lambda m: m.l1.clear(),
    "a tuple for a list": lambda m: setattr(m, "l1", tuple(m.l1)),
    "a module moved": lambda m: _into_list(m, "b"),
    "a parent": lambda m: setattr(m.a, "parent", m),
    "a list in a list": lambda m: m.l1.append(m.l2),
    "no metadata": lambda m: setattr(m.p, "metadata", {}),
    "a weak type": lambda m: setattr(m.a.w, "value", jnp.asarray(1.0)),
    "two arrays in a variable": lambda m: setattr(m.a.w, "value", {"q": jnp.ones(2), "r": jnp.zeros(2)}),
    "no arrays in a variable": lambda m: setattr(m.a.w, "value", ()),
}
_MORE |= {
    "a raw array of another dtype": lambda m: setattr(m, "raw", jnp.arange(2)),
    "a raw NumPy array": lambda m: setattr(m, "raw", np.arange(2, dtype=np.float32)),
    "a number for a raw array": lambda m: setattr(m, "raw", 2),
    "None for a raw array": lambda m: setattr(m, "raw", None),
    "a variable for a raw array": lambda m: setattr(m, "raw", lift.Param(jnp.ones(2))),
    "a module for a raw array": lambda m: setattr(m, "raw", _Leaf(2.0)),
    "a list for a raw array": lambda m: setattr(m, "raw", [jnp.ones(2)]),
    "a shared variable for a raw array": lambda m: setattr(m, "raw", m.p),
    "an equal enum for a key": lambda m: m.d.update({_Key.x: m.d.pop("x")}),
    "an equal enum for a key of the last": lambda m: m.d.update({_Key.y: m.d.pop("y")}),
    "a number for a key": lambda m: m.d.update({1: m.d.pop("y")}),
    "a tree changed in place": lambda m: m.tree.value.update(new=jnp.ones(2)),
    "a leaf of a tree changed in place": lambda m: m.tree.value.update(count=jnp.ones((), jnp.int32)),
    "a number in a tree": lambda m: m.tree.value.update(count=3),
    "a word in a tree": lambda m: m.tree.value.update(count="a"),
}
_HOLDER: dict[str, Callable[[Any], Any]] = {
    "a module not shared any more": lambda m: setattr(m, "again", _Leaf(1.0)),
    "a module shared no more, past the module": lambda m: object.__setattr__(m, "again", _Leaf(1.0)),
    "another function": lambda m: setattr(m, "act", lambda x: x + 1),
    "the same function of another number": lambda m: setattr(m, "act", _times(3)),
    "the same function of True": lambda m: setattr(m, "act", _times(True)),
    "a method of another class": lambda m: setattr(m, "__class__", _OtherHolder),
    "a method of another object": lambda m: setattr(m, "method", _Holder().scaled),
    "what a method reads": lambda m: setattr(m.b, "n", 3),
    "another Equinox module": lambda m: setattr(m, "net", _Net(jnp.zeros(2), [], 1)),
    "an Equinox module by tree_at": lambda m: setattr(m, "net", eqx.tree_at(lambda n: n.w, m.net, jnp.ones(3))),
    "True for 1 in an Equinox module": lambda m: setattr(m, "net", _Net(m.net.w, m.net.layers, True)),
    "an Equinox module of another class": lambda m: setattr(m, "net", _OtherNet(m.net.w, m.net.layers, 1)),
    "a list in an Equinox module longer": lambda m: m.net.layers.append(jnp.ones(1)),
    "another array in a list in an Equinox module": lambda m: m.net.layers.__setitem__(0, jnp.zeros(2)),
    "an array in a tuple changed in place": lambda m: m.pair[0].__setitem__(0, 5.0),
    "an array in a tuple resized": lambda m: m.pair[0].resize(3, refcheck=False),
    "a list of variables in a tuple longer": lambda m: m.pair[1].append(lift.Param(jnp.ones(2))),
    "a list of variables in a tuple reversed": lambda m: m.pair[1].reverse(),
    "another tuple": lambda m: setattr(m, "pair", (jnp.zeros(2), m.pair[1])),
    "a state with less in it": lambda m: setattr(m.opt, "value", _Moments({"w": jnp.ones(2)}, ())),
    "a tuple for a state": lambda m: setattr(m.opt, "value", tuple(m.opt.value)),
    "a dict in a state changed in place": lambda m: m.opt.value.mu.update(v=jnp.ones(2)),
    "a word of a tree": lambda m: m.words.value.update(word="b"),
    "an equal enum for a word of a tree": lambda m: m.words.value.update(word=_Name.a),
    "a list in a tree longer": lambda m: m.words.value["more"].append(jnp.ones(2)),
    "None in a list in a tree": lambda m: m.words.value["more"].__setitem__(0, None),
    "True for 1 as a key of a tree": lambda m: setattr(m.numbered, "value", {True: jnp.ones(2)}),
    "a set larger": lambda m: m.flags.add(2),
    "True for 1 in a set": lambda m: (m.flags.clear(), m.flags.add(True)),
    "a NumPy array changed in place": lambda m: m.host.__setitem__(0, 5.0),
    "a NumPy array resized": lambda m: m.host.resize(3, refcheck=False),
}
# A short look and a long one see the same, and jit and scan follow the same plans: of the others a part is enough.
_CASES = [
    *((_jitted, _Told, name) for name in _CHANGES),
    *((_jitted, _Mixed, name) for name in (*list(_CHANGES)[::6], *_MORE)),
    *((_jitted, _Holder, name) for name in ("nothing", *_HOLDER)),
    *((_scanned, _Told, name) for name in list(_CHANGES)[1::8]),
]


def _assert_same(one: Any, other: Any) -> None:
    assert one[1] == other[1]
    assert list(one[1]) == list(other[1]), "in the same order"
    assert one[0].keys() == other[0].keys()
    for path, left in one[0].items():
        assert left.dtype == other[0][path].dtype
        np.testing.assert_array_equal(left, other[0][path])


def _outcome(step: Any, model: Any) -> tuple[Any, str | None]:
    try:
        return step(model), None
    except lift.errors.LiftError as error:
        return None, type(error).__name__


@pytest.mark.parametrize(
    ("make", "kind", "name"), _CASES, ids=[f"{make.__name__} {kind.__name__} {name}" for make, kind, name in _CASES]
)
def test_a_change_between_two_calls_is_seen(make: Callable[[], Any], kind: type, name: str) -> None:
    change = (_CHANGES | _MORE | _HOLDER)[name]
    # The twin comes first: who makes a module tells of it, and then nobody looks at the model only briefly.
    twin, fresh = kind(), make()
    for _ in range(4):
        _bump(twin)
    change(twin)
    model, step = kind(), make()
    for _ in range(4):
        step(model)
    assert step.stats().planned > 0, "the change meets a plan"
    change(model)
    for _ in range(4):
        found, refused = _outcome(step, model)
        wanted, refused_too = _outcome(fresh, twin)
        assert refused == refused_too
        if refused is None:
            _assert_same(found, wanted)
        _assert_same(_report(model), _report(twin))


_ONE, _TWO = jnp.ones(2), jnp.zeros(2)


def _net(k: Any = 1, cls: type[_Net] = _Net, w: Any = _ONE) -> _Net:
    return cls(w, [_ONE], k)


def _pair(shared: bool) -> list[_Leaf]:
    leaf = _Leaf(1.0)
    return [leaf, leaf if shared else _Leaf(1.0)]


#: What an argument was, and what it is then.
_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a key more": ({"a": _ONE}, {"a": _ONE, "b": _TWO}),
    "other keys": ({"a": _ONE}, {"b": _ONE}),
    "keys in another order": ({"a": _ONE, "b": _TWO}, {"b": _TWO, "a": _ONE}),
    "True for 1 as a key": ({1: _ONE}, {True: _ONE}),
    "1.0 for 1 as a key": ({1: _ONE}, {1.0: _ONE}),
    "an equal enum for a key": ({"a": _ONE}, {_Name.a: _ONE}),
    "an ordered dict": ({"a": _ONE}, collections.OrderedDict(a=_ONE)),
    "an ordered dict in another order": (
        collections.OrderedDict(a=_ONE, b=_TWO),
        collections.OrderedDict(b=_TWO, a=_ONE),
    ),
    "a list longer": ([_ONE], [_ONE, _TWO]),
    "a tuple for a list": ([_ONE], (_ONE,)),
    "a named tuple for a tuple": ((_ONE, _TWO), _Moments(_ONE, _TWO)),
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
    "an equal enum for a word": ({"a": "a", "x": _ONE}, {"a": _Name.a, "x": _ONE}),
    "an equal enum for an argument": ("a", _Name.a),
    "another function": ([_times(2)], [lambda x: x - 1]),
    "another module": ({"m": _Leaf(1.0)}, {"m": _Leaf(3.0)}),
    "a module twice": (_pair(False), _pair(True)),
    "a module no more twice": (_pair(True), _pair(False)),
    "Equinox: by tree_at": (_net(), eqx.tree_at(lambda net: net.w, _net(), _TWO)),
    "Equinox: another shape": (_net(), _net(w=jnp.ones(3))),
    "Equinox: None for an array": (_net(), _net(w=None)),
    "Equinox: a number for an array": (_net(), _net(w=2.0)),
    "Equinox: True for 1": (_net(), _net(True)),
    "Equinox: 1.0 for 1": (_net(), _net(1.0)),
    "Equinox: another class": (_net(), _net(cls=_OtherNet)),
}


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_another_argument_is_told_apart(name: str) -> None:
    first, second = _ARGUMENTS[name]
    step = lift.jit(lambda tree: _report(tree))
    for _ in range(4):
        step(first)
    assert step.stats().planned > 0, "the other argument meets a plan"
    for tree in (second, second, first, second, second, first):
        _assert_same(step(tree), lift.jit(lambda tree: _report(tree))(tree))


_IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a list in a dict longer": (lambda: {"a": [_ONE]}, lambda tree: tree["a"].append(_TWO)),
    "a dict in a list larger": (lambda: [{"a": _ONE}], lambda tree: tree[0].update(b=_TWO)),
    "a NumPy array": (lambda: [np.ones(2, np.float32)], lambda tree: tree[0].__setitem__(0, 5.0)),
    "Equinox: a list longer": (_net, lambda net: net.layers.append(_TWO)),
    "Equinox: an array past the module": (_net, lambda net: object.__setattr__(net, "w", _TWO)),
    "Equinox: True for 1 past the module": (_net, lambda net: object.__setattr__(net, "k", True)),
    "Equinox: another class past the module": (_net, lambda net: object.__setattr__(net, "__class__", _OtherNet)),
}


@pytest.mark.parametrize("name", _IN_PLACE)
def test_an_argument_changed_in_place_is_seen(name: str) -> None:
    make, change = _IN_PLACE[name]
    tree, step = make(), lift.jit(lambda tree: _report(tree))
    for _ in range(4):
        step(tree)
    assert step.stats().planned > 0, "the change meets a plan"
    change(tree)
    for _ in range(3):
        _assert_same(step(tree), lift.jit(lambda tree: _report(tree))(tree))


def _takes(*args: Any, **kwargs: Any) -> Any:
    return _report((args, kwargs))


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
        _assert_same(step(*args, **kwargs), lift.jit(lambda *a, **k: _takes(*a, **k))(*args, **kwargs))
    assert step.stats().planned >= 2 * len(_CALLS[name])


def test_static_arguments_are_told_apart() -> None:
    values: list[Any] = [1, True, 1.0, "a", _Name.a, (1,), (True,), 0.0, -0.0, [1], _Config(1), _Config(2)]
    step = lift.jit(lambda x, k: (x * 2, f"{k!r}"), static_argnums=1)
    for value in values * 4:
        assert step(1.0, value)[1] == repr(value)
    assert step.stats().planned >= 2 * len(values)
    assert step.stats().traces == len(values)
    for value, change in ((values[-3], lambda one: one.append(2)), (values[-1], lambda one: setattr(one, "k", 3))):
        change(value)
        assert step(1.0, value)[1] == repr(value)


class _Scaled(lift.Module):
    def __init__(self, w: float, n: int) -> None:
        self.w = lift.Param(jnp.asarray(w))
        self.n = n
        self.others: list[Any] = []

    def apply(self, x: Any) -> Any:
        self.w.value = self.w.value + 1
        return self.w.value * x * self.n

    def __call__(self, x: Any) -> Any:
        return self.apply(x) + sum(other(x) for other in self.others)


class _Minus(_Scaled):
    def apply(self, x: Any) -> Any:
        return -super().apply(x)


@pytest.mark.parametrize("bind", [lambda model: model.apply, lambda model: model], ids=["method", "module"])
def test_what_a_function_is_bound_to_is_followed(bind: Callable[[Any], Any]) -> None:
    model, twin = _Scaled(1.0, 1), _Scaled(1.0, 1)
    step, plain = lift.jit(bind(model)), bind(twin)
    assert [float(step(3.0)) for _ in range(5)] == [float(plain(3.0)) for _ in range(5)]
    assert step.stats().planned >= 3
    changes: list[Callable[[Any], Any]] = [
        lambda m: setattr(m, "n", 2),
        lambda m: m.others.append(_Scaled(4.0, 1)),
        lambda m: m.others.clear(),
        lambda m: object.__setattr__(m, "__class__", _Minus),
    ]
    for change in changes:
        change(twin)
        change(model)
        assert [float(step(3.0)) for _ in range(3)] == [float(plain(3.0)) for _ in range(3)]
        assert float(lift.jit(bind(model))(3.0)) == float(bind(twin)(3.0))


def test_one_function_follows_two_models_of_different_structure() -> None:
    step = lift.jit(lambda model, x: model(x))
    models = [_Scaled(1.0, 1), _Scaled(2.0, 3), _Minus(3.0, 1)]
    models[1].others.append(models[0])
    twins = [lift.clone(model) for model in (models[0], models[2])]
    twins.insert(1, _Scaled(2.0, 3))
    twins[1].others.append(twins[0])
    for turn in range(6):
        for model, twin in zip(models, twins, strict=True):
            assert float(step(model, float(turn))) == float(twin(float(turn)))
    assert step.stats().planned >= 3 * 3
    for model, twin in zip(models, twins, strict=True):
        assert float(model.w.value) == float(twin.w.value)


def test_several_functions_on_one_model_see_what_each_other_does() -> None:
    model, twin = _Scaled(1.0, 1), _Scaled(1.0, 1)

    def grown(model: Any) -> None:
        model.others.append(_Scaled(2.0, 1))

    def scanned(model: Any, x: Any) -> Any:
        return model, model.w.value * x

    apply, renamed, grow = lift.jit(lambda m, x: m(x)), lift.remat(lambda m, x: m.apply(x)), lift.jit(grown)
    total = lift.grad(lambda m, x: m.w.value * x * m.n)
    loop = lift.scan(scanned, in_axes=(lift.Carry, 0))
    mapped = lift.vmap(lambda m, x: m.w.value * x, in_axes=(None, 0))
    for turn in range(12):
        if turn in (5, 9):
            grow(model)
            grown(twin)
        if turn == 7:
            model.n = twin.n = 2
        assert float(apply(model, 3.0)) == float(twin(3.0))
        assert float(renamed(model, 2.0)) == float(twin.apply(2.0))
        np.testing.assert_array_equal(total(model, 2.0)["w"], 2.0 * model.n)
        np.testing.assert_array_equal(loop(model, jnp.ones(2))[1], jnp.full(2, twin.w.value))
        np.testing.assert_array_equal(mapped(model, jnp.ones(2)), jnp.full(2, twin.w.value))
        assert len(model.others) == len(twin.others)
    for step in (apply, renamed, loop):
        assert step.stats().planned >= 4


class _Optimizer(lift.Module):
    def __init__(self, params: list[lift.Variable]) -> None:
        self.params = list(params)
        self.velocity = [lift.Variable(jnp.zeros_like(param.value)) for param in params]


def _train(model: _Scaled, optimizer: _Optimizer) -> Any:
    for param, velocity in zip(optimizer.params, optimizer.velocity, strict=True):
        velocity.value = velocity.value + 1
        param.value = param.value - velocity.value
    return model.w.value


def test_a_model_and_its_optimizer_that_share_and_then_do_not() -> None:
    model, step = _Scaled(1.0, 1), lift.jit(lambda model, optimizer: _train(model, optimizer))
    optimizer, wanted, velocity = _Optimizer([model.w]), 1.0, 0.0
    for _ in range(5):
        velocity += 1
        wanted -= velocity
        assert float(step(model, optimizer)) == float(model.w.value) == wanted
    assert step.stats().planned == 3
    kept, model.w = model.w, lift.Param(jnp.asarray(100.0))
    for _ in range(3):
        velocity += 1
        wanted -= velocity
        assert float(step(model, optimizer)) == float(model.w.value) == 100.0
        assert float(kept.value) == wanted, "the optimizer goes on with what it has"
    optimizer.params[0] = model.w
    for turn in range(3):
        velocity += 1
        assert float(step(model, optimizer)) == 100.0 - sum(velocity - back for back in range(turn + 1))
        assert float(kept.value) == wanted


_model: Any = None


def _of_a_global(x: Any) -> Any:
    return _model.w.value * x * _model.n + sum(other.w.value for other in _model.others)


def _expected(model: _Scaled) -> float:
    return float(model.w.value) * 3 * model.n + sum(float(other.w.value) for other in model.others)


@pytest.mark.parametrize("where", ["global", "closure", "default", "partial", "list"])
def test_what_a_function_captures_is_read_as_it_is_now(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, held = _Scaled(2.0, 1), [_Scaled(2.0, 1)]
    other = _Scaled(7.0, 2)

    def of(model: Any, x: Any) -> Any:
        return model.w.value * x * model.n + sum(one.w.value for one in model.others)

    def by_default(x: Any, model: Any = model) -> Any:
        return of(model, x)

    functions: dict[str, Callable[[Any], Any]] = {
        "global": lambda x: _of_a_global(x),
        "closure": lambda x: of(model, x),
        "default": by_default,
        "partial": functools.partial(of, model),
        "list": lambda x: of(held[0], x),
    }
    monkeypatch.setitem(globals(), "_model", model)
    step = lift.jit(functions[where])
    now = held[0] if where == "list" else model
    for turn in range(5):
        now.w.value = jnp.asarray(float(turn))
        assert float(step(3.0)) == _expected(now)
    if where != "list":  # what is in a list is searched in each call
        assert step.stats().planned == 3
    changes: list[Callable[[], Any]] = [
        lambda: setattr(now, "n", 4),
        lambda: object.__setattr__(now, "n", 5),
        lambda: setattr(now, "w", lift.Param(jnp.asarray(11.0))),
        lambda: now.others.append(_Scaled(1.0, 1)),
        lambda: now.others[0].w.__setitem__(..., jnp.asarray(5.0)),
        lambda: now.others.clear(),
    ]
    for change in changes:
        change()
        assert [float(step(3.0)) for _ in range(4)] == [_expected(now)] * 4
    if where == "global":
        monkeypatch.setitem(globals(), "_model", other)
    elif where == "list":
        held[0] = other
    elif where == "closure":
        model = other
    else:
        return
    assert [float(step(3.0)) for _ in range(4)] == [_expected(other)] * 4
