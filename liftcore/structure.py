"""The program that rebuilds an object forest.

A forest is cut into *regions*: one for each argument, and one for each object with identity (a module, a list or dict
below one, a mutable cell). A region is a flat, hashable program for what lies between its top and the next objects:
leaves, static values, trees in between, and numbers of the objects that hang there. Sharing and cycles are two
regions naming one number. Regions compare by value, so that a rebuilt model has the same structure.

`liftcore.walk` takes objects apart into regions; `assemble` runs one. The classes here are made once for each object
and call, and are not frozen, since that would triple what making one costs; nothing changes them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from liftcore.families import kind_of
from liftcore.paths import Path, text
from liftcore.protocol import EMPTY, Node, Reference

__all__ = [
    "CONTAINERS",
    "ONE_LEAF",
    "Assembly",
    "Built",
    "Code",
    "Forest",
    "Found",
    "Op",
    "Part",
    "Place",
    "Region",
    "assemble",
    "build",
    "fill",
    "gradient_values",
    "make_empty",
    "object_kind",
]


class Op(enum.Enum):
    """The instructions of a region, in pre-order."""

    LEAF = "leaf"
    STATIC = "static"
    KEPT = "kept"  # static because its owner says so: it stays also in containers of gradients
    OBJECT = "object"
    TREE = "tree"


#: The program of a region that is one leaf.
ONE_LEAF = ((Op.LEAF,),)


@dataclasses.dataclass(slots=True, eq=False)
class Region:
    """The program of one region; compares by header, instructions and children.

    Attributes:
      header: what stands at the top: class, attribute names, metadata, by value.
      ops: the instructions. They leave one entry for each attribute of a node, and one for a cell or an argument.
      children: numbers of the objects that hang here, in order.
      leaf_keys: where each leaf lies below the top.
      child_keys: where each object hangs below the top.
    """

    header: Hashable
    ops: tuple[Any, ...]
    children: tuple[int, ...]
    leaf_keys: tuple[Path, ...]
    child_keys: tuple[Path, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Region)
            and self.header == other.header
            and self.ops == other.ops
            and self.children == other.children
        )

    def __hash__(self) -> int:
        return hash((self.header, self.ops, self.children))

    def kinds_of_values(self) -> list[Op]:
        """The instructions that have a value, in order: a static value, or what rebuilds a tree."""
        return [op[0] for op in self.ops if op[0] not in (Op.LEAF, Op.OBJECT)]

    def is_leaf(self) -> bool:
        """Whether one leaf is all that there is."""
        return self.ops == ONE_LEAF


@dataclasses.dataclass(slots=True)
class Part:
    """A region with what its program needs besides leaves and objects.

    Attributes:
      region: the program.
      values: for each static value that value, for each tree the callable that rebuilds it from its children.
      cls: class of the object at the top; None for an argument.
      keys: names of a node's children; None for a cell or an argument.
      metadata: a cell's metadata; None for a node or an argument.
    """

    region: Region
    values: tuple[Any, ...]
    cls: type | None = None
    keys: tuple[Any, ...] | None = None
    metadata: Mapping[str, Any] | None = None

    def named_ops(self) -> dict[Any, Any]:
        """Of a node: the instruction at the top of each child, by the child's name."""
        named: dict[Any, Any] = {}
        names = iter(self.keys or ())
        below = 0  # instructions that belong to the tree before
        for op in self.region.ops:
            if below:
                below -= 1
            else:
                named[next(names)] = op
            below += op[2] if op[0] is Op.TREE else 0
        return named

    def bare(self) -> Part:
        """The same without values, to be kept longer than the objects that it was made from."""
        return Part(self.region, (), self.cls, self.keys, self.metadata)


@dataclasses.dataclass(slots=True)
class Place:
    """Where an object was first met.

    Attributes:
      root: the argument's name, or "return".
      path: keys from there.
      owners: classes of the enclosing objects, outermost first.
    """

    root: str
    path: Path
    owners: tuple[type, ...] = ()

    def __str__(self) -> str:
        return text(self.root, self.path)


@dataclasses.dataclass(slots=True)
class Found:
    """A part as the walk met it: its leaves, and the classes of the tree modules around each leaf and object."""

    part: Part
    leaves: list[Any]
    leaf_owners: list[tuple[type, ...]]
    child_owners: list[tuple[type, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Forest:
    """All regions of some arguments.

    Attributes:
      roots: what was found for each argument, by name.
      objects: the objects with identity, by number.
      found: what was found for each.
      places: where each was first met.
    """

    roots: dict[str, Found]
    objects: list[Any]
    found: list[Found]
    places: list[Place]

    def __iter__(self) -> Iterator[tuple[Place, Any, Found]]:
        """Place, object (None for an argument) and finding, in the order in which leaves are numbered."""
        for name, found in self.roots.items():
            yield Place(name, ()), None, found
        yield from zip(self.places, self.objects, self.found, strict=True)

    def leaves(self) -> list[Any]:
        """All leaves, those of arguments first, then those of objects by number."""
        return [leaf for _, _, found in self for leaf in found.leaves]

    def values(self) -> list[Any]:
        """All values, in the same order."""
        return [value for _, _, found in self for value in found.part.values]

    def key(self) -> Hashable:
        """The structure, compared by value."""
        return (
            tuple((name, found.part.region) for name, found in self.roots.items()),
            tuple(found.part.region for found in self.found),
        )


def _fill_list(target: list[Any], entries: Mapping[Any, Any]) -> None:
    target[:] = entries.values()


def _fill_dict(target: dict[Any, Any], entries: Mapping[Any, Any]) -> None:
    target.clear()
    target.update(entries)


def _list_items(target: list[Any]) -> Mapping[Any, Any]:
    return dict(enumerate(target))


def _dict_items(target: dict[Any, Any]) -> Mapping[Any, Any]:
    return target


def _make(cls: type) -> Any:
    return cls()


# Below a module with identity, builtin lists and dicts are nodes like any other.
CONTAINERS: dict[type, Node] = {
    list: Node(items=_list_items, make=_make, fill=_fill_list),
    dict: Node(items=_dict_items, make=_make, fill=_fill_dict),
}


def object_kind(obj: Any) -> Reference | Node | None:
    """What a numbered object is: a builtin list or dict below a module is a node too."""
    return CONTAINERS.get(type(obj)) or kind_of(type(obj))


class Assembly:
    """A region's program, compiled: which values and results each tree is made from.

    Args:
      region: the region.
    """

    __slots__ = ("_children", "_results", "_trees")

    def __init__(self, region: Region) -> None:
        # Places: leaves, then values, then objects, then trees in the order in which they are made.
        leaf = len(region.leaf_keys)
        value = leaf + len(region.kinds_of_values())
        tree = child = value + len(region.children)
        self._children = region.children
        self._trees: list[tuple[int, list[int]]] = []
        stack: list[int] = []
        # Backwards, so that the children of every tree are on the stack when the tree is reached: no recursion.
        for op in reversed(region.ops):
            match op[0]:
                case Op.LEAF:
                    leaf -= 1
                    stack.append(leaf)
                case Op.OBJECT:
                    child -= 1
                    stack.append(child)
                case Op.TREE:
                    value -= 1
                    below = [stack.pop() for _ in range(op[2])]
                    self._trees.append((value, below))
                    stack.append(tree)
                    tree += 1
                case _:
                    value -= 1
                    stack.append(value)
        self._results = stack[::-1]

    def __call__(self, leaves: Sequence[Any], values: Sequence[Any], objects: Sequence[Any]) -> list[Any]:
        """Runs it.

        Args:
          leaves: the region's leaves, in order.
          values: its static values and rebuilders, in order.
          objects: objects by number.

        Returns:
          The entries at the top: one for each attribute of a node, one for a cell or an argument.
        """
        places = [*leaves, *values, *map(objects.__getitem__, self._children)]
        for value, below in self._trees:
            places.append(places[value]([places[place] for place in below]))
        return [places[place] for place in self._results]


def assemble(part: Part, leaves: Sequence[Any], values: Sequence[Any], objects: Sequence[Any]) -> Sequence[Any]:
    """Runs a region's program once: see `Assembly`."""
    return leaves if part.region.is_leaf() else Assembly(part.region)(leaves, values, objects)


class Built(NamedTuple):
    """A forest that was built anew.

    Attributes:
      roots: the arguments by name.
      objects: the objects by number.
      entries: what each object was filled with.
    """

    roots: dict[str, Any]
    objects: list[Any]
    entries: list[Sequence[Any]]


def build(roots: Mapping[str, Part], parts: Sequence[Part], leaves: Sequence[Any]) -> Built:
    """Builds a forest anew: runs the program of every region around other leaves.

    Args:
      roots: the part of each argument, by name, with its values.
      parts: the part of each object, by number, with its values.
      leaves: all leaves, those of arguments first, then those of objects by number.
    """
    objects = [make_empty(part) for part in parts]
    made: list[Sequence[Any]] = []
    start = 0
    for part in (*roots.values(), *parts):
        stop = start + len(part.region.leaf_keys)
        made.append(assemble(part, leaves[start:stop], part.values, objects))
        start = stop
    entries = made[len(roots) :]
    for obj, part, mine in zip(objects, parts, entries, strict=True):
        fill(obj, part, mine)
    return Built({name: mine[0] for name, mine in zip(roots, made, strict=False)}, objects, entries)


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """Rebuilds a tree that is code: a partial, a method, a function around objects.

    Attributes:
      rebuild: the callable that rebuilds it from its children.
      names: the children's keys.
    """

    rebuild: Callable[[list[Any]], Any]
    names: tuple[Hashable, ...]

    def __call__(self, children: list[Any]) -> Any:
        """Rebuilds it."""
        return self.rebuild(children)

    def container(self, children: list[Any]) -> Any:
        """What stands for it in a container of gradients: its children by name; None where there is no leaf."""
        return dict(zip(self.names, children, strict=True)) if jax.tree.leaves(children) else None


def gradient_values(part: Part) -> list[Any]:
    """The values of a part for a container of gradients: None for what is static by nature, not by its owner's word."""
    kinds = part.region.kinds_of_values()
    values = [value.container if isinstance(value, Code) else value for value in part.values]
    return [None if kind is Op.STATIC else value for kind, value in zip(kinds, values, strict=True)]


def make_empty(part: Part) -> Any:
    """Makes the object at the top of a region, without contents, so that cycles can refer to it."""
    assert part.cls is not None, "an argument is no object"
    kind = CONTAINERS.get(part.cls) or kind_of(part.cls)
    if isinstance(kind, Reference):
        return kind.make(part.cls, part.metadata or EMPTY)
    assert kind is not None
    return kind.make(part.cls)


def fill(obj: Any, part: Part, entries: Sequence[Any]) -> None:
    """Gives an object the contents that `assemble` made."""
    kind = object_kind(obj)
    if isinstance(kind, Reference):
        kind.write(obj, entries[0])
    else:
        assert kind is not None
        assert part.keys is not None
        kind.fill(obj, dict(zip(part.keys, entries, strict=True)))
