"""Guards of plans: whatever changes between two calls, a planned function does what a new one does."""

from __future__ import annotations

import dataclasses
import enum
import gc
from collections.abc import Callable
from typing import Any

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


@dataclasses.dataclass
class _Config:
    k: int = 1


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


def _report(model: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """All arrays in a graph, and all else as text, by path."""
    seen: dict[int, str] = {}
    arrays: dict[str, Any] = {}
    words: dict[str, str] = {}

    def go(obj: Any, path: str) -> None:
        if isinstance(obj, (lift.Module, lift.Variable, list, dict)):
            if id(obj) in seen:
                words[path] = f"is {seen[id(obj)]}"
                return
            seen[id(obj)] = path
        if isinstance(obj, lift.Variable):
            words[path] = f"{type(obj).__name__} {dict(obj.metadata)!r} {jax.tree.structure(obj.value)}"
            arrays[path] = jax.tree.map(lambda x: jnp.asarray(x) * 2, obj.value)
        elif isinstance(obj, lift.Module):
            words[path] = f"{type(obj).__name__} {', '.join(vars(obj))}"
            for name, child in vars(obj).items():
                go(child, f"{path}.{name}")
        elif type(obj) in (list, dict):
            words[path] = f"{type(obj).__name__} {len(obj)}"
            for key, child in obj.items() if isinstance(obj, dict) else enumerate(obj):
                go(child, f"{path}[{key!r}]")
        elif hasattr(obj, "dtype"):
            arrays[path] = obj * 2
        else:
            words[path] = f"{type(obj).__name__} {obj!r}"

    go(model, "m")
    return arrays, words


def _bump(model: Any) -> None:
    """Writes every variable once."""
    seen: set[int] = set()
    pending = [model]
    while pending:
        obj = pending.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, lift.Variable):
            obj.value = jax.tree.map(lambda x: jnp.asarray(x) + 1, obj.value)
        elif isinstance(obj, lift.Module):
            pending += vars(obj).values()
        elif type(obj) is list:
            pending += obj
        elif type(obj) is dict:
            pending += obj.values()


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


def _again(model: Any, name: str) -> None:
    value = getattr(model, name)
    delattr(model, name)
    setattr(model, name, value)


def _move(model: Any) -> None:
    model.b.extra = model.a.w
    del model.a.w


def _exchange(model: Any) -> None:
    model.a, model.b = model.b, model.a


def _swap(model: Any) -> None:
    model.l1[0], model.l1[1] = model.l1[1], model.l1[0]


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
    "an attribute renamed": lambda m: (setattr(m, "bb", m.b), delattr(m, "b")),
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
_CHANGES |= {
    f"{name}, by {way}": lambda m, put=put, key=key, value=value: put(m.a, key, value)
    for way, put in _WAYS.items()
    for name, (key, value) in _STATICS.items()
}
_CHANGES |= {
    f"an equal enum for a string, by {way}": lambda m, put=_WAYS[way]: put(m.a, "name", _Name.a)
    for way in ("setattr", "vars")
}
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
# A short look and a long one see the same, and jit and scan follow the same plans: of the others a part is enough.
_CASES = [
    *((_jitted, _Told, name) for name in _CHANGES),
    *((_jitted, _Mixed, name) for name in (*list(_CHANGES)[::6], *_MORE)),
    *((_scanned, _Told, name) for name in list(_CHANGES)[1::8]),
]


def _assert_same(one: Any, other: Any) -> None:
    assert one[1] == other[1]
    assert list(one[1]) == list(other[1]), "in the same order"
    assert jax.tree.structure(one[0]) == jax.tree.structure(other[0])
    for left, right in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def _outcome(step: Any, model: Any) -> tuple[Any, str | None]:
    try:
        return step(model), None
    except lift.errors.LiftError as error:
        return None, type(error).__name__


@pytest.mark.parametrize(
    ("make", "kind", "name"), _CASES, ids=[f"{make.__name__} {kind.__name__} {name}" for make, kind, name in _CASES]
)
def test_a_change_between_two_calls_is_seen(make: Callable[[], Any], kind: type, name: str) -> None:
    model, step = kind(), make()
    for _ in range(4):
        step(model)
    assert step.stats().planned > 0, "the change meets a plan"
    (_CHANGES | _MORE)[name](model)
    twin, fresh = lift.clone(model), make()
    for _ in range(2):
        found, refused = _outcome(step, model)
        wanted, refused_too = _outcome(fresh, twin)
        assert refused == refused_too
        if refused is None:
            _assert_same(found, wanted)
        _assert_same(_report(model), _report(twin))
