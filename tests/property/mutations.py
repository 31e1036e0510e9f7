"""Changes of a graph by plain Python: each takes all roots, and numbers that choose what is changed, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import liftcore as lift
from tests.property.graphs import Box

__all__ = ["CHANGES", "Change"]

Change = Callable[[Any, int, int, int], None]


class _Renamed(Box):
    """Another class of the same contents."""


def _contents(box: Box) -> dict[str, Any]:
    return box.__getstate__()  # as vars(box), without exposing it


def _all(kind: type, roots: Any) -> list[Any]:
    """All objects of a kind, found without exposing a module; a list or dict is one below a module only."""
    found: dict[int, Any] = {}
    pending = [(roots, False)]
    while pending:
        value, below = pending.pop()
        if isinstance(value, (lift.Module, lift.Variable)) or (below and isinstance(value, (list, dict))):
            if id(value) in found:
                continue
            found[id(value)] = value
        if isinstance(value, Box):
            pending += [(child, True) for child in _contents(value).values()]
        elif type(value) in (list, tuple):
            pending += [(child, below) for child in value]
        elif isinstance(value, dict):
            pending += [(child, below) for child in value.values()]
    return [value for value in found.values() if isinstance(value, kind)]


def _pick(several: list[Any], number: int) -> Any:
    return several[number % len(several)]


def _new(roots: Any, number: int) -> Any:
    """Something to put somewhere: new, static, or there already."""
    makers: list[Callable[[], Any]] = [
        lambda: _pick(_all(object, roots), number),
        lambda: lift.Param(jnp.ones(2)),
        lambda: _pick([1, True, 1.0, None, "text"], number),
    ]
    return _pick(makers, number)()


def set_attribute(roots: Any, a: int, b: int, c: int) -> None:
    """Sets an attribute."""
    box = _pick(_all(Box, roots), a)
    setattr(box, _pick([*_contents(box), "z"], b), _new(roots, c))


def set_past(roots: Any, a: int, b: int, c: int) -> None:
    """Sets an attribute without a word."""
    box = _pick(_all(Box, roots), a)
    object.__setattr__(box, _pick([*_contents(box), "z"], b), _new(roots, c))


def delete_past(roots: Any, a: int, b: int, c: int) -> None:
    """Deletes an attribute without a word."""
    box = _pick(_all(Box, roots), a)
    if names := list(_contents(box)):
        object.__delattr__(box, _pick(names, b))


def replace_class(roots: Any, a: int, b: int, c: int) -> None:
    """Makes a module one of another class."""
    box = _pick(_all(Box, roots), a)
    put: Callable[[Any, str, Any], None] = object.__setattr__ if b % 2 else setattr
    put(box, "__class__", Box if type(box) is _Renamed else _Renamed)


def replace_dict(roots: Any, a: int, b: int, c: int) -> None:
    """Gives a module another dict, in another order or without an entry."""
    box = _pick(_all(Box, roots), a)
    entries = list(_contents(box).items())
    box.__dict__ = dict(entries[::-1] if b % 2 else entries[1:])


def rename(roots: Any, a: int, b: int, c: int) -> None:
    """Gives an attribute another name, or the last place."""
    box = _pick(_all(Box, roots), a)
    if names := list(_contents(box)):
        name = _pick(names, b)
        value = getattr(box, name)
        delattr(box, name)
        setattr(box, _pick([name, "z"], c), value)


def move(roots: Any, a: int, b: int, c: int) -> None:
    """Moves an attribute to another module."""
    box, other = _pick(_all(Box, roots), a), _pick(_all(Box, roots), c)
    if names := list(_contents(box)):
        name = _pick(names, b)
        setattr(other, name, getattr(box, name))
        if other is not box:
            delattr(box, name)


def change_list(roots: Any, a: int, b: int, c: int) -> None:
    """Changes a list in place."""
    if lists := _all(list, roots):
        target = _pick(lists, a)
        match b % 4:
            case 0:
                target.append(_new(roots, c))
            case 1 if target:
                target[c % len(target)] = _new(roots, c)
            case 2 if target:
                target.pop(c % len(target))
            case _:
                target.reverse()


def change_metadata(roots: Any, a: int, b: int, c: int) -> None:
    """Sets metadata."""
    if variables := _all(lift.Variable, roots):
        _pick(variables, a).set_metadata(note=_pick([1, True, "text"], b))


def change_value(roots: Any, a: int, b: int, c: int) -> None:
    """Gives a variable a value of another kind."""
    if variables := _all(lift.Variable, roots):
        values = [jnp.ones(3), jnp.ones(2, jnp.int32), 2.0, {"a": jnp.ones(2)}, [jnp.ones(2), jnp.ones(())], ()]
        _pick(variables, a).value = _pick(values, b)


CHANGES: tuple[Change, ...] = (
    set_attribute,
    set_past,
    delete_past,
    replace_class,
    replace_dict,
    rename,
    move,
    change_list,
    change_metadata,
    change_value,
)
