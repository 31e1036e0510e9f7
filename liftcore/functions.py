"""Objects inside of functions: what a Python function captures, and the same function around other objects.

A function that closes over a model is, to the lift, a node whose children are the captured objects: they are split with
everything else and enter as hidden inputs, and the function that runs inside is rebuilt around the inner objects.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax

from liftcore import contents
from liftcore.families import is_object

__all__ = ["Watch", "Wrapper", "label", "origin", "parts", "reaches", "rebuild"]

# A place in a function that can hold an object: ("cell", 0), ("default", 1), ("kwdefault", "x") or ("global", "model").
Slot = tuple[str, Hashable]

# So many values are looked at in one search: what is larger is data, and most of it alike.
_SEARCHED = 512
_OPENED = (list, tuple, dict, types.FunctionType, types.MethodType, functools.partial)
_loads = functools.lru_cache(maxsize=4096)(contents.loads)

# The function from which a rebuilt one was made, so that both have the same static key.
# Weakly, since it closes over the caller's objects.
_origins: weakref.WeakKeyDictionary[types.FunctionType, weakref.ref[types.FunctionType]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=4096)
def _written(code: types.CodeType, opcodes: tuple[str, ...]) -> frozenset[str]:
    """Names that a code object, and those nested in it, write with these instructions."""
    names = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in opcodes}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _written(constant, opcodes)
    return frozenset(names)


def _slots(fn: types.FunctionType) -> Iterator[tuple[Slot, Any]]:
    rebound = _written(fn.__code__, ("STORE_DEREF", "DELETE_DEREF"))
    for index, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
        if name not in rebound:
            try:
                yield ("cell", index), cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
    for index, value in enumerate(fn.__defaults__ or ()):
        yield ("default", index), value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield ("kwdefault", name), value
    # Other globals are other globals for all of the function: what it writes there would be lost.
    if not _written(fn.__code__, ("STORE_GLOBAL", "DELETE_GLOBAL")):
        for name in _loads(fn.__code__):
            value = fn.__globals__.get(name)
            # A function of another module is a library's: what it names is not this function's business.
            if not isinstance(value, types.FunctionType) or value.__globals__ is fn.__globals__:
                yield ("global", name), value


class Wrapper:
    """Base of callables that hold functions, such as lifted ones: to the lift they are nodes, as functions are.

    Attributes:
      functions: what it wraps.
    """

    functions: tuple[Callable[..., Any], ...]

    def around(self, functions: Sequence[Callable[..., Any]]) -> Wrapper:
        """The same around other functions."""
        raise NotImplementedError

    def key(self) -> Hashable:
        """What it is besides its functions, by value."""
        raise NotImplementedError


def reaches(value: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a value is a family's object, or holds one, or is a list, tuple or dict with arrays.

    A bare array is not: like any constant it is a part of the trace, as in JAX. Of large containers the beginning is
    searched.

    Args:
      value: anything.
      seen: ids of functions being searched already.
    """
    pending, found, left = [(value, False)], set(seen), _SEARCHED
    while pending and left:
        one, contained = pending.pop()
        left -= 1
        cls = type(one)
        if is_object(one) or (contained and isinstance(one, jax.Array)):
            return True
        if cls not in _OPENED and not isinstance(one, Wrapper):
            continue
        if id(one) in found:
            continue
        found.add(id(one))
        if cls in (list, tuple, dict):
            children = itertools.islice(one.values() if cls is dict else one, left)
            pending += [(child, True) for child in children]
        elif cls is types.FunctionType:
            pending += [(child, False) for _, child in _slots(one)]
        elif cls is types.MethodType:
            pending.append((one.__self__, False))
        elif cls is functools.partial:
            pending += [(one.func, False), (one.args, False), (one.keywords, False)]
        else:
            pending += [(child, False) for child in one.functions]
    return False


def parts(fn: types.FunctionType, seen: frozenset[int] = frozenset()) -> dict[Slot, Any]:
    """Finds what a function captures that holds a family's objects, or is a container with arrays.

    Closure cells, defaults and the globals that its code names are searched, functions of the same module among them
    too. A name that the code itself writes is left alone, since a rebuilt function would write somewhere else.

    Args:
      fn: a Python function.
      seen: ids of functions being searched already.

    Returns:
      The values by the places where they stand.

    Example:
      >>> parts(lambda x: x)
      {}
    """
    seen |= {id(fn)}
    return {slot: value for slot, value in _slots(fn) if reaches(value, seen)}


def label(fn: types.FunctionType, slot: Slot) -> str:
    """The name by which a function's code calls what stands in a place."""
    place, which = slot
    if place == "cell":
        return fn.__code__.co_freevars[cast("int", which)]
    if place == "default":
        first = fn.__code__.co_argcount - len(fn.__defaults__ or ())
        return fn.__code__.co_varnames[first + cast("int", which)]
    return str(which)


def origin(fn: types.FunctionType) -> types.FunctionType:
    """The function from which `rebuild` made this one, or the function itself."""
    known = _origins.get(fn)
    first = None if known is None else known()
    return fn if first is None else first


def rebuild(fn: types.FunctionType, replaced: Mapping[Slot, Any]) -> types.FunctionType:
    """The same function around other objects.

    Args:
      fn: a Python function.
      replaced: new values by place, as `parts` names places.

    Returns:
      A new function; `fn` itself if every value is the one that stands there already.

    Example:
      >>> def f(x, y=1): return x + y
      >>> rebuild(f, {("default", 0): 10})(1)
      11
    """
    standing = dict(_slots(fn))
    if all(slot in standing and standing[slot] is value for slot, value in replaced.items()):
        return fn
    named = {str(name): value for (place, name), value in replaced.items() if place == "global"}
    new = types.FunctionType(
        fn.__code__,
        {**fn.__globals__, **named} if named else fn.__globals__,
        fn.__name__,
        tuple(replaced.get(("default", index), value) for index, value in enumerate(fn.__defaults__ or ())) or None,
        tuple(
            types.CellType(replaced[("cell", index)]) if ("cell", index) in replaced else cell
            for index, cell in enumerate(fn.__closure__ or ())
        ),
    )
    # A function that calls itself by name calls the new one.
    if named and fn.__globals__.get(fn.__name__) is fn:
        new.__globals__[fn.__name__] = new
    new.__kwdefaults__ = {
        name: replaced.get(("kwdefault", name), value) for name, value in (fn.__kwdefaults__ or {}).items()
    }
    new.__dict__.update(fn.__dict__)
    new.__qualname__, new.__module__, new.__doc__ = fn.__qualname__, fn.__module__, fn.__doc__
    _origins[new] = weakref.ref(origin(fn))
    return new


def _standing(fn: types.FunctionType | None, slot: Slot) -> Any:
    place, which = slot[0], cast("Any", slot[1])
    if fn is None:
        return _nothing
    try:
        if place == "global":
            return fn.__globals__.get(which)
        if place == "cell":
            return (fn.__closure__ or ())[which].cell_contents
        return (fn.__defaults__ or ())[which] if place == "default" else (fn.__kwdefaults__ or {})[which]
    except (ValueError, LookupError, TypeError):
        return None


class Watch:
    """What a search of functions came upon, to see whether it would come upon the same objects again.

    Args:
      captured: the functions.

    Attributes:
      possible: whether it can be seen without a search: not if a list or dict holds objects.
    """

    def __init__(self, captured: Sequence[Any]) -> None:
        self.possible = True
        self._seen: list[tuple[weakref.ref[types.FunctionType], Slot, Callable[[], Any], bool]] = []
        pending, known = list(captured), set[int]()
        while pending:
            one = pending.pop()
            cls = type(one)
            if id(one) in known:
                continue
            known.add(id(one))
            if cls is types.FunctionType:
                for slot, value in _slots(one):
                    self._seen.append((weakref.ref(one), slot, _weakly(value), reaches(value)))
                    pending.append(value)
            elif cls is types.MethodType:
                pending += (one.__func__, one.__self__)
            elif cls is functools.partial:
                pending += (one.func, *one.args)
                self.possible &= not one.keywords
            elif isinstance(one, Wrapper):
                pending += one.functions
            elif cls is tuple:
                pending += one
            elif cls in (list, dict):
                self.possible &= not reaches(one)

    def holds(self) -> bool:
        """Whether a search would find the same objects."""
        for fn, slot, get, found in self._seen:
            value = _standing(fn(), slot)
            # What leads to no object may become another value, as long as that leads to none either.
            if get() is not value and (found or reaches(value)):
                return False
        return True


def _nothing() -> Any:
    return _nothing


def _weakly(value: Any) -> Callable[[], Any]:
    """Gets a value as long as it lives; never that of a container, which can be another one tomorrow."""
    try:
        return weakref.ref(value)
    except TypeError:
        return functools.partial(_itself, value) if type(value) in contents.ATOMS else _nothing


def _itself(value: Any) -> Any:
    return value
