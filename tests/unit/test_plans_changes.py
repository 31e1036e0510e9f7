"""Plans and changes: whatever changes in a graph between two calls, a planned function does what a new one does."""

from __future__ import annotations

import enum
import gc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from tests.property.reports import Config, Leaf, Moments, Name, Net, OtherNet, assert_same, contents, report, times


class _Other(Leaf):
    pass


class _Key(enum.StrEnum):
    x = "x"
    y = "y"


class _Told(lift.Module):
    """A graph of modules and variables only: a short look is enough for it."""

    def __init__(self) -> None:
        self.a, self.b = Leaf(1.0), Leaf(2.0)
        self.l1, self.l2 = [Leaf(3.0), Leaf(4.0)], [Leaf(5.0)]
        self.p = lift.Param(jnp.ones(2), words=1)


class _Mixed(_Told):
    """Raw arrays, dicts, configs and trees in variables besides."""

    def __init__(self) -> None:
        super().__init__()
        self.d = {"x": Leaf(6.0), "y": lift.BatchStat(jnp.ones(2))}
        self.raw = jnp.arange(2.0)
        self.config = Config()
        self.tree = lift.Variable({"mu": (jnp.ones(2), jnp.zeros(2)), "count": jnp.zeros((), jnp.int32)})


class _Holder(_Told):
    """Functions, tuples, Equinox modules and states of optimizers besides, and one module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.a
        self.act = times(2)
        self.method = self.scaled
        self.net = Net(jnp.ones(2), [jnp.ones(2)], 1)
        self.pair = (np.ones(2, np.float32), [lift.Param(jnp.ones(2)), lift.Param(jnp.zeros(2))])
        self.opt = lift.Variable(Moments({"w": jnp.ones(2)}, (jnp.zeros(2),)))
        self.words = lift.Variable({"word": "a", "more": [jnp.ones(2)]})
        self.numbered = lift.Variable({1: jnp.ones(2)})
        self.flags = {1}
        self.host = np.ones(2, np.float32)

    def scaled(self, x: Any) -> Any:
        return x * self.b.n


class _OtherHolder(_Holder):
    def scaled(self, x: Any) -> Any:
        return x - self.b.n


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
                pending += [child for _, child in contents(obj)]


def _jitted() -> Any:
    def step(model: Any) -> Any:
        seen = report(model)
        _bump(model)
        return seen

    return lift.jit(step)


def _scanned() -> Any:
    def step(model: Any, x: Any) -> Any:
        arrays, words = report(model)
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
    model.l1.append(Leaf(9.0))


def _same_id(model: Any) -> None:
    number = id(model.b)
    del model.b
    gc.collect()
    kept = []
    for _ in range(2000):
        new = Leaf(7.0)
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
    "a list longer": lambda m: m.l1.append(Leaf(8.0)),
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
_CHANGES |= {f"an equal enum for a string, by {way}": _putting(way, "name", Name.a) for way in ("setattr", "vars")}
_MORE: dict[str, Callable[[Any], Any]] = {
    "a config changed in place": lambda m: setattr(m.config, "k", 2),
    "True for 1 in a config": lambda m: setattr(m.config, "k", True),
    "a raw array": lambda m: setattr(m, "raw", jnp.ones(2)),
    "a raw array of another shape": lambda m: setattr(m, "raw", jnp.ones(3)),
    "a dict larger": lambda m: m.d.update(z=Leaf(3.0)),
    "a dict with another key": lambda m: m.d.update(z=m.d.pop("x")),
    "a dict in another order": lambda m: m.d.update(x=m.d.pop("x")),
    "another object in a dict": lambda m: m.d.update(x=Leaf(3.0)),
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
    "another module": lambda m: object.__setattr__(m, "b", Leaf(7.0)),
    "a module shared": lambda m: object.__setattr__(m, "b", m.a),
    "a list shared": lambda m: object.__setattr__(m, "l2", m.l1),
}
_CHANGES |= {f"{name}, past the module": change for name, change in _PAST.items()}
_CHANGES |= {
    "a module in a list replaced": lambda m: m.l1.__setitem__(0, Leaf(9.0)),
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
    "a module for a raw array": lambda m: setattr(m, "raw", Leaf(2.0)),
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
    "a module not shared any more": lambda m: setattr(m, "again", Leaf(1.0)),
    "a module shared no more, past the module": lambda m: object.__setattr__(m, "again", Leaf(1.0)),
    "another function": lambda m: setattr(m, "act", lambda x: x + 1),
    "the same function of another number": lambda m: setattr(m, "act", times(3)),
    "the same function of True": lambda m: setattr(m, "act", times(True)),
    "a method of another class": lambda m: setattr(m, "__class__", _OtherHolder),
    "a method of another object": lambda m: setattr(m, "method", _Holder().scaled),
    "what a method reads": lambda m: setattr(m.b, "n", 3),
    "another Equinox module": lambda m: setattr(m, "net", Net(jnp.zeros(2), [], 1)),
    "an Equinox module by tree_at": lambda m: setattr(m, "net", eqx.tree_at(lambda n: n.w, m.net, jnp.ones(3))),
    "True for 1 in an Equinox module": lambda m: setattr(m, "net", Net(m.net.w, m.net.layers, True)),
    "an Equinox module of another class": lambda m: setattr(m, "net", OtherNet(m.net.w, m.net.layers, 1)),
    "a list in an Equinox module longer": lambda m: m.net.layers.append(jnp.ones(1)),
    "another array in a list in an Equinox module": lambda m: m.net.layers.__setitem__(0, jnp.zeros(2)),
    "an array in a tuple changed in place": lambda m: m.pair[0].__setitem__(0, 5.0),
    "an array in a tuple resized": lambda m: m.pair[0].resize(3, refcheck=False),
    "a list of variables in a tuple longer": lambda m: m.pair[1].append(lift.Param(jnp.ones(2))),
    "a list of variables in a tuple reversed": lambda m: m.pair[1].reverse(),
    "another tuple": lambda m: setattr(m, "pair", (jnp.zeros(2), m.pair[1])),
    "a state with less in it": lambda m: setattr(m.opt, "value", Moments({"w": jnp.ones(2)}, ())),
    "a tuple for a state": lambda m: setattr(m.opt, "value", tuple(m.opt.value)),
    "a dict in a state changed in place": lambda m: m.opt.value.mu.update(v=jnp.ones(2)),
    "a word of a tree": lambda m: m.words.value.update(word="b"),
    "an equal enum for a word of a tree": lambda m: m.words.value.update(word=Name.a),
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
            assert_same(found, wanted)
        assert_same(report(model), report(twin))
