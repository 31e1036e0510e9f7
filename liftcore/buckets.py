"""What crosses JAX's boundary: lists of leaves that are known by the user's own paths, and the output structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

__all__ = ["Bucket", "Layout", "Opaque"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Names of a bucket's places, such as "model.blocks[2].kernel"; compared by identity, one a program."""

    names: tuple[str, ...]


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
