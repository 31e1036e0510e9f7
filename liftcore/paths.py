"""Paths of leaves: tuples of plain keys (attribute names, dict keys, indices), and how they are written for people."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import jax

__all__ = ["CAPTURED", "Path", "from_keys", "like_jax", "plain_key", "text"]

Path = tuple[Hashable, ...]

#: Root of what a function closes over: the function is taken apart with the arguments.
CAPTURED = "<captured>"
# Keys of a partial and of a method, which the user's code does not name.
_UNNAMED = ("func", "args", "keywords", "__func__", "__self__")


def plain_key(key: Any) -> Hashable:
    """Turns one of JAX's key-path entries into the plain key that it stands for.

    Args:
      key: a `DictKey`, `GetAttrKey`, `SequenceKey`, `FlattenedIndexKey`, or an entry of a stranger's.

    Returns:
      The dict key, attribute name or index; for an unknown entry its text.
    """
    match key:
        case jax.tree_util.DictKey(key=plain) | jax.tree_util.FlattenedIndexKey(key=plain):
            return plain  # type: ignore[no-any-return]
        case jax.tree_util.GetAttrKey(name=name):
            return name  # type: ignore[no-any-return]
        case jax.tree_util.SequenceKey(idx=index):
            return index  # type: ignore[no-any-return]
        case _:
            return str(key)


def from_keys(keys: tuple[Any, ...]) -> Path:
    """Turns a JAX key path into a path of plain keys."""
    return tuple(plain_key(key) for key in keys)


def like_jax(keys: Iterable[Any]) -> list[Any]:
    """Keys in JAX's order: it sorts the keys of a dict where they can be sorted, so that two orders are one structure.

    Example:
      >>> like_jax({"b": 1, "a": 2})
      ['a', 'b']
    """
    try:
        return sorted(keys)
    except TypeError:
        return list(keys)


def text(root: str, path: Path) -> str:
    """Writes a path as a person would write it in code.

    Args:
      root: the parameter's name, or "return".
      path: plain keys from there.

    Returns:
      For instance "model.blocks[2].kernel".

    Example:
      >>> text("model", ("blocks", 2, "kernel"))
      'model.blocks[2].kernel'
      >>> text("batch", ("my key",))
      "batch['my key']"
    """
    if root == CAPTURED:
        # Below come the function's number, and then the names by which its code knows what it closes over.
        named = [key for key in path[2:] if key not in _UNNAMED]
        while named and not (isinstance(named[0], str) and named[0].isidentifier()):
            del named[0]
        root, path = str(named[0]) if named else "what it closes over", tuple(named[1:])
    parts = [root]
    for key in path:
        if isinstance(key, str) and key.isidentifier():
            parts.append(f".{key}")
        else:
            parts.append(f"[{key!r}]")
    return "".join(parts)
