"""What crosses JAX's boundary: lists of leaves that are known by the user's own paths, and the output structure."""

from __future__ import annotations

import dataclasses
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

__all__ = ["Bucket", "Layout", "Opaque", "Pick", "picker"]

#: Picks some values of a sequence.
Pick = Callable[[Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """Names of a bucket's places, such as "model.blocks[2].kernel"; compared by identity, which is fast: see `of`."""

    names: tuple[str, ...]

    @staticmethod
    def of(names: Iterable[str]) -> Layout:
        """The one layout with these names, so that two buckets of the same places are the same to JAX.

        Args:
          names: of each place, in order.

        Example:
          >>> Layout.of(["model.w"]) is Layout.of(["model.w"])
          True
        """
        key = tuple(names)
        with _lock:
            found = _layouts.get(key)
            if found is None:
                found = _layouts[key] = Layout(key)
            return found


_layouts: weakref.WeakValueDictionary[tuple[str, ...], Layout] = weakref.WeakValueDictionary()
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True)
class _Name:
    """A key path entry that JAX's own messages print as it is; quoted, to be found in them."""

    name: str

    def __str__(self) -> str:
        return f" `{self.name}`"


@dataclasses.dataclass(slots=True)
class Bucket:
    """Leaves that travel under one spelling of JAX's own prefix.

    Attributes:
      leaves: the arrays.
      layout: their names.
    """

    leaves: Sequence[Any]
    layout: Layout

    def deleted(self) -> list[str]:
        """Names of the leaves whose buffers were donated, and are gone."""
        return [
            name
            for name, leaf in zip(self.layout.names, self.leaves, strict=True)
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted()
        ]


jax.tree_util.register_pytree_with_keys(
    Bucket,
    lambda bucket: (tuple(zip(map(_Name, bucket.layout.names), bucket.leaves, strict=True)), bucket.layout),
    lambda layout, leaves: Bucket(tuple(leaves), layout),
    lambda bucket: (tuple(bucket.leaves), bucket.layout),
)


class _Any:
    """Equal to every other, so that JAX compares no output structures."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Any)

    def __hash__(self) -> int:
        return 0


@dataclasses.dataclass(slots=True)
class Opaque:
    """The output structure, as a pytree node without leaves: JAX hands it on under any prefix. An output only."""

    value: Any


jax.tree_util.register_pytree_node(
    Opaque, lambda opaque: ((), _Any(opaque.value)), lambda wrapped, _: Opaque(wrapped.value)
)


def picker(positions: Sequence[int], size: int | None = None) -> Pick:
    """A function that picks what stands in some positions of a sequence.

    Args:
      positions: the positions.
      size: length of the sequence, if it is known: where all of it is picked in order, the sequence itself is given.

    Example:
      >>> picker([2, 0])("abc"), picker([1, 2])("abc"), picker([])("abc")
      (('c', 'a'), 'bc', ())
    """
    if not positions:
        return lambda values: ()
    first, count = positions[0], len(positions)
    if list(positions) != list(range(first, first + count)):
        return operator.itemgetter(*positions)
    if count == size:
        return lambda values: values
    return operator.itemgetter(slice(first, first + count))
