"""How own objects print: a tree, short, with each shared object written out once."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable
from typing import Any

__all__ = ["Shown"]

_WIDTH = 88


class Shown:
    """Base of what prints as a tree; a subclass says what stands between its brackets."""

    __slots__ = ()

    def _shown(self) -> Iterable[tuple[str, Any]]:
        """Names (or "") and values to print."""
        raise NotImplementedError

    @reprlib.recursive_repr("...")
    def __repr__(self) -> str:
        return _text("", self, 0, set())


_AS_TREE: Any = Shown.__repr__


def _text(name: str, value: Any, indent: int, seen: set[int]) -> str:
    """Writes a value in one line if it fits, else with one line for each part.

    Args:
      name: what stands before it, such as "kernel=".
      value: anything.
      indent: column at which the line starts.
      seen: ids of the objects that were written out already; a second time they are only named.
    """
    parts = _parts(value)
    if parts is None:
        return name + _leaf_text(value).replace("\n", "\n" + " " * indent)
    opening, closing, entries = parts
    if id(value) in seen:
        return f"{name}{opening}...{closing}"
    if type(value) is not tuple:
        seen.add(id(value))
    texts = [(isinstance(child, Shown), _text(key, child, indent + 2, seen)) for key, child in entries]
    written: list[str] = []
    for (is_object, text), same in itertools.groupby(texts):
        count = sum(1 for _ in same)
        written += [f"{count} x {text}"] if is_object and count > 1 else [text] * count
    comma = "," if type(value) is tuple and len(value) == 1 else ""
    line = f"{name}{opening}{', '.join(written)}{comma}{closing}"
    if indent + len(line) <= _WIDTH and "\n" not in line:
        return line
    pad = " " * indent
    return "\n".join([name + opening, *(f"{pad}  {part}," for part in written), pad + closing])


def _parts(value: Any) -> tuple[str, str, list[tuple[str, Any]]] | None:
    """Opening, closing, and what stands between them; None for what is written as a whole."""
    cls = type(value)
    if isinstance(value, Shown) and cls.__repr__ is _AS_TREE:
        return f"{cls.__name__}(", ")", [(f"{key}=" if key else "", child) for key, child in value._shown()]
    if cls is list:
        return "[", "]", [("", child) for child in value]
    if cls is tuple:
        return "(", ")", [("", child) for child in value]
    if cls is dict:
        return "{", "}", [(f"{key!r}: ", child) for key, child in value.items()]
    return None


def _leaf_text(value: Any) -> str:
    if isinstance(value, Shown):
        return repr(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else str(name).rpartition("<locals>.")[2]
