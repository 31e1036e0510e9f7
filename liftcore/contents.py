"""What a value is made of, one level at a time: containers, partials, dataclasses, functions.

Data for `liftcore.statics`, which compares static values by their parts and looks for arrays among them.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax

__all__ = ["ATOMS", "PARTS", "Parts", "Reader", "captured", "loads", "pairs", "reader"]

#: What stands below a value: where it stands (for messages) and what it is.
Parts = list[tuple[Hashable, Any]]
Reader = Callable[[Any], Parts]


def pairs(items: Iterable[tuple[Any, Any]]) -> Parts:
    """Keys and values in turn, both under the key's name."""
    # One step in C, so that another thread may change the mapping meanwhile.
    items = tuple(items)
    return [(name, part) for name, value in items for part in (name, value)]


def _numbered(values: Iterable[Any]) -> Parts:
    return list(enumerate(values))


def _elements(value: Iterable[Any]) -> Parts:
    return [("element", element) for element in tuple(value)]


def _attributes(*names: str) -> Reader:
    return lambda value: [(name, getattr(value, name)) for name in names]


def _tuple(value: tuple[Any, ...]) -> Parts:
    return list(zip(getattr(value, "_fields", range(len(value))), tuple.__iter__(value), strict=True))


#: Types of values that have no parts, and are the same everywhere.
ATOMS = frozenset((str, bytes, bool, int, float, complex, types.NoneType))

#: How to take a value of exactly this type apart.
PARTS: dict[type, Reader] = {
    tuple: _tuple,
    list: lambda value: _numbered(list.__iter__(value)),
    set: lambda value: _elements(set.__iter__(value)),
    frozenset: lambda value: _elements(frozenset.__iter__(value)),
    dict: lambda value: pairs(dict.items(value)),
    collections.OrderedDict: lambda value: pairs(dict.items(value)),
    collections.Counter: lambda value: pairs(dict.items(value)),
    collections.defaultdict: lambda value: [("default_factory", value.default_factory), *pairs(dict.items(value))],
    collections.deque: lambda value: [("maxlen", value.maxlen), *_numbered(tuple(value))],
    types.MappingProxyType: lambda value: pairs(value.items()),
    types.SimpleNamespace: lambda value: pairs(vars(value).items()),
    types.MethodType: _attributes("__func__", "__self__"),
    slice: _attributes("start", "stop", "step"),
    range: _attributes("start", "stop", "step"),
    **dict.fromkeys((functools.partial, jax.tree_util.Partial), _attributes("func", "args", "keywords", "__dict__")),
}


def reader(kind: type, *, compared: bool) -> Reader | None:
    """How to take a value of a class apart.

    Args:
      kind: any class.
      compared: only if the equality of its values is that of their parts.

    Returns:
      A function from a value to its parts; None if there is none.

    Example:
      >>> reader(dict, compared=True)({"width": 3})
      [('width', 'width'), ('width', 3)]
    """
    exact = PARTS.get(kind)
    if exact is not None:
        return exact
    for base in kind.__mro__:
        if base in PARTS:
            above = kind.__mro__[: kind.__mro__.index(base)]
            more = kind.__eq__ is not base.__eq__ or any(vars(cls).get("__slots__") for cls in above)
            return None if compared and more else _with_attributes(PARTS[base], kind)
    if dataclasses.is_dataclass(kind):
        if compared and getattr(getattr(kind.__eq__, "__code__", None), "co_filename", None) != "<string>":
            return None  # an equality that its author wrote, or the default one
        return _attributes(*(field.name for field in dataclasses.fields(kind) if field.compare or not compared))
    return None


def _with_attributes(read: Reader, kind: type) -> Reader:
    return (lambda value: [*read(value), ("__dict__", vars(value))]) if kind.__dictoffset__ else read


@functools.lru_cache(maxsize=4096)
def loads(code: types.CodeType) -> tuple[str, ...]:
    """Names of the globals that a code object, and those nested in it, really load.

    Example:
      >>> loads((lambda x: [abs(x.real)]).__code__)
      ('abs',)
    """
    opcodes = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    names = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in opcodes]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += loads(constant)
    return tuple(dict.fromkeys(names))


def captured(fn: types.FunctionType) -> Parts:
    """Cells, defaults and attributes of a function; an empty cell stands for itself.

    Example:
      >>> captured(lambda x, scale=2: x * scale)
      [('default scale', 2), ('__dict__', {})]
    """
    code, defaults = fn.__code__, fn.__defaults__ or ()
    parts: Parts = []
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        try:
            parts.append((f"cell {name}", cell.cell_contents))
        except ValueError:
            parts.append((f"cell {name}", cell))
    parameters = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    parts += [(f"default {name}", value) for name, value in zip(parameters, defaults, strict=True)]
    parts += [(f"default {name}", value) for name, value in (fn.__kwdefaults__ or {}).items()]
    return [*parts, ("__dict__", fn.__dict__)]
