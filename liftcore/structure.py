"""The program that rebuilds an object forest, and the walk that makes it.

A forest is cut into *regions*: one for each argument, and one for each object with identity (a module, a list or dict
below one, a mutable cell). A region is a flat, hashable program for what lies between its top and the next objects:
leaves, static values, trees in between, and numbers of the objects that hang there. Sharing and cycles are two
regions naming one number. Regions compare by value, so that a rebuilt model has the same structure.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from liftcore import captures, functions, statics
from liftcore.errors import StaticError
from liftcore.families import kind_of
from liftcore.paths import Path, plain_key, text
from liftcore.protocol import EMPTY, Node, Reference

__all__ = [
    "Forest",
    "Found",
    "Part",
    "Place",
    "Region",
    "Static",
    "Walk",
    "assemble",
    "fill",
    "gradient_values",
    "is_leaf",
    "make_empty",
    "object_kind",
]


class _Op(enum.Enum):
    """The instructions of a region, in pre-order."""

    LEAF = "leaf"
    STATIC = "static"
    KEPT = "kept"  # static because its owner says so: it stays also in containers of gradients
    OBJECT = "object"
    TREE = "tree"


_LEAF = (_Op.LEAF,)
_OBJECT = (_Op.OBJECT,)


class _Mode(enum.Enum):
    """Where the walk is: in ARGUMENT Python numbers are leaves, in OBJECT lists and dicts have identity."""

    ARGUMENT = "argument"
    OBJECT = "object"
    TREE = "tree"
    STATIC = "static"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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


@dataclasses.dataclass(frozen=True, slots=True)
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

    def bare(self) -> Part:
        """The same without values, to be kept longer than the objects that it was made from."""
        return dataclasses.replace(self, values=())


@dataclasses.dataclass(frozen=True, slots=True)
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


@dataclasses.dataclass(frozen=True, slots=True)
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
_CONTAINERS: dict[type, Node] = {
    list: Node(items=_list_items, make=_make, fill=_fill_list),
    dict: Node(items=_dict_items, make=_make, fill=_fill_dict),
}

_NUMBERS = (bool, int, float, complex)
_ATOMS = frozenset((str, bytes, type(None), bool, int, float, complex, type, types.BuiltinFunctionType))
_TEXT_DTYPES = frozenset("OSUMm")


_LEAF_TYPES = (jax.core.Tracer, jax.Array, jax.ShapeDtypeStruct, jax.Ref)


def is_leaf(value: Any) -> bool:
    """Whether a value is an array to JAX: arrays, NumPy arrays and scalars, keys, `ShapeDtypeStruct`, `jax.Ref`.

    Example:
      >>> is_leaf(np.ones(2)), is_leaf("text")
      (True, False)
    """
    if isinstance(value, _LEAF_TYPES):
        return True
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in _TEXT_DTYPES


def object_kind(obj: Any) -> Reference | Node | None:
    """What a numbered object is: a builtin list or dict below a module is a node too."""
    return _CONTAINERS.get(type(obj)) or kind_of(type(obj))


def _has_identity(value: Any, mode: _Mode) -> bool:
    if type(value) in _CONTAINERS:
        return mode is _Mode.OBJECT
    kind = kind_of(type(value))
    return isinstance(kind, Reference) or (isinstance(kind, Node) and kind.identity)


# Rebuilders of trees: each takes the list of children.


def _rebuild_dict(keys: tuple[Any, ...], children: list[Any]) -> dict[Any, Any]:
    return dict(zip(keys, children, strict=True))


def _rebuild_node(kind: Node, cls: type, keys: tuple[Any, ...], children: list[Any]) -> Any:
    new = kind.make(cls)
    kind.fill(new, dict(zip(keys, children, strict=True)))
    return new


def _rebuild_method(children: list[Any]) -> Any:
    function, owner = children
    return types.MethodType(function, owner)


def _rebuild_partial(children: list[Any]) -> Any:
    function, arguments, keywords = children
    return functools.partial(function, *arguments, **keywords)


def _rebuild_function(fn: types.FunctionType, slots: tuple[Any, ...], children: list[Any]) -> Any:
    return functions.rebuild(fn, dict(zip(slots, children, strict=True)))


def _rebuild_pytree(treedef: Any, children: list[Any]) -> Any:
    return treedef.unflatten(children)


# An entry of the walk's stack: value, path below the top, mode, owners within the region, functions being searched.
_Entry = tuple[Any, Path, _Mode, tuple[type, ...], frozenset[int]]
_Tree = tuple[Hashable, Callable[[list[Any]], Any], list[_Entry]]


def _sorted_like_jax(mapping: dict[Any, Any]) -> list[Any]:
    # JAX sorts the keys of a dict, so that two orders are one structure.
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def _tree(entry: _Entry) -> _Tree | None:
    """Takes one level of a tree apart: its key, how to rebuild it, its children; None for a value that is no tree."""
    value, path, mode, owners, seen = entry
    cls = type(value)

    def children(pairs: Iterable[tuple[Any, Any]], mode: _Mode = mode) -> list[_Entry]:
        return [(child, (*path, key), mode, owners, seen) for key, child in pairs]

    if cls is tuple or cls is list:
        return (cls, len(value)), cls, children(enumerate(value))
    if cls is dict:
        keys = tuple(_sorted_like_jax(value))
        return (
            (dict, tuple(statics.key(key) for key in keys)),
            functools.partial(_rebuild_dict, keys),
            children((key, value[key]) for key in keys),
        )
    kind = kind_of(cls)
    if isinstance(kind, Node):
        items, static = kind.items(value), kind.static(value)
        keys, inside = tuple(items), (*owners, cls)
        below = [
            (child, (*path, key), _Mode.STATIC if key in static else _Mode.TREE, inside, seen)
            for key, child in items.items()
        ]
        return (cls, keys), functools.partial(_rebuild_node, kind, cls, keys), below
    if cls is types.MethodType and kind_of(type(value.__self__)) is not None:
        pairs = [("__func__", value.__func__), ("__self__", value.__self__)]
        return (cls,), _rebuild_method, children(pairs)
    if cls is functools.partial:
        pairs = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        return (cls,), _rebuild_partial, children(pairs, _Mode.TREE)
    if cls is types.FunctionType:
        found = functions.parts(value, seen)
        if not found:
            return None
        seen |= {id(value)}
        fn = functions.origin(value)
        pairs = [(functions.label(fn, slot), child) for slot, child in found.items()]
        key = (cls, statics.key(fn), tuple(found))
        return key, functools.partial(_rebuild_function, fn, tuple(found)), children(pairs, _Mode.TREE)
    if isinstance(value, functions.Wrapper):
        if not functions.reaches(value, seen):
            return None
        names = [(getattr(function, "__name__", index), function) for index, function in enumerate(value.functions)]
        return (cls, value.key()), value.around, children(names, _Mode.TREE)
    if cls in _ATOMS or jax.tree_util.all_leaves((value,)):
        return None
    with_keys, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda other: other is not value)
    _, auxiliary = treedef.node_data()  # type: ignore[attr-defined]
    inner = _Mode.ARGUMENT if mode is _Mode.ARGUMENT else _Mode.TREE
    return (
        (cls, statics.key(auxiliary), len(with_keys)),
        functools.partial(_rebuild_pytree, treedef),
        children(((plain_key(keys[0]), child) for keys, child in with_keys), inner),
    )


class Walk:
    """Takes object forests apart; numbers objects with identity in the order in which it meets them.

    The order is argument by argument, breadth first: a shared object belongs to the place nearest to the top of the
    first argument that leads to it.

    Args:
      objects: objects that have their numbers already, in order.
      places: where those are.
      leaving: whether values leave a trace, so that no new static value may hold a tracer.
    """

    def __init__(self, objects: Sequence[Any] = (), places: Sequence[Place] = (), *, leaving: bool = False) -> None:
        self.objects = list(objects)
        self.places = list(places)
        self.numbers = {id(obj): number for number, obj in enumerate(self.objects)}
        self._leaving = leaving

    def forest(self, roots: Mapping[str, Any]) -> Forest:
        """Takes arguments apart, and all objects below them."""
        top: dict[str, Found] = {}
        found: list[Found] = []
        for name, value in roots.items():
            top[name] = self.argument(name, value)
            self.follow(found)
        return Forest(top, self.objects, found, self.places)

    def follow(self, found: list[Found]) -> None:
        """Takes apart all objects that have a number and are not found yet, and those that they lead to."""
        while len(found) < len(self.objects):
            found.append(self.content(len(found)))

    def argument(self, name: str, value: Any) -> Found:
        """Takes one argument apart, down to the objects in it."""
        mode = _Mode.STATIC if isinstance(value, Static) else _Mode.ARGUMENT
        value = value.value if isinstance(value, Static) else value
        return self._found(Place(name, ()), None, [(value, (), mode, (), frozenset())], ("argument",))

    def content(self, number: int) -> Found:
        """Takes one numbered object apart, down to the next objects."""
        obj, place = self.objects[number], self.places[number]
        cls = type(obj)
        kind = object_kind(obj)
        if isinstance(kind, Reference):
            value = kind.read(obj) if kind.born is None else captures.read(obj, kind, kind.born(obj))
            metadata = kind.metadata(obj)
            header: Hashable = (cls,)
            if metadata:
                metadata = dict(metadata)
                self._check_static(metadata, place, ("metadata",))
                header = (cls, statics.key(metadata))
            entries: list[_Entry] = [(value, (), _Mode.ARGUMENT, (), frozenset())]
            return self._found(place, obj, entries, header, cls=cls, metadata=metadata)
        assert kind is not None, "only objects with identity are numbered"
        items = dict(kind.items(obj))
        static = kind.static(obj)
        keys = tuple(items)
        entries = [
            (child, (key,), _Mode.STATIC if key in static else _Mode.OBJECT, (), frozenset())
            for key, child in items.items()
        ]
        header = (cls, tuple(map(statics.key, keys)) if cls is dict else len(keys) if cls is list else keys)
        return self._found(place, obj, entries, header, cls=cls, keys=keys)

    def _found(self, place: Place, obj: Any, entries: list[_Entry], header: Hashable, **top: Any) -> Found:
        ops: list[Any] = []
        values: list[Any] = []
        leaves: list[Any] = []
        leaf_keys: list[Path] = []
        leaf_owners: list[tuple[type, ...]] = []
        children: list[int] = []
        child_keys: list[Path] = []
        child_owners: list[tuple[type, ...]] = []
        stack = entries[::-1]
        while stack:
            entry = stack.pop()
            value, path, mode, owners, _ = entry
            if mode is not _Mode.STATIC:
                if is_leaf(value) or (mode is _Mode.ARGUMENT and type(value) in _NUMBERS):
                    ops.append(_LEAF)
                    leaves.append(value)
                    leaf_keys.append(path)
                    leaf_owners.append(owners)
                    continue
                if _has_identity(value, mode):
                    ops.append(_OBJECT)
                    inside = () if obj is None else (type(obj),)
                    children.append(self._number(value, place, path, (*inside, *owners)))
                    child_keys.append(path)
                    child_owners.append(owners)
                    continue
                tree = _tree(entry)
                if tree is not None:
                    key, maker, below = tree
                    ops.append((_Op.TREE, key, len(below)))
                    values.append(maker)
                    stack.extend(reversed(below))
                    continue
            self._check_static(value, place, path)
            ops.append((_Op.KEPT if mode is _Mode.STATIC else _Op.STATIC, statics.key(value)))
            values.append(value)
        region = Region(header, tuple(ops), tuple(children), tuple(leaf_keys), tuple(child_keys))
        return Found(Part(region, tuple(values), **top), leaves, leaf_owners, child_owners)

    def _number(self, obj: Any, place: Place, path: Path, owners: tuple[type, ...]) -> int:
        number = self.numbers.get(id(obj))
        if number is None:
            number = self.numbers[id(obj)] = len(self.objects)
            self.objects.append(obj)
            self.places.append(Place(place.root, place.path + path, place.owners + owners))
        return number

    def _check_static(self, value: Any, place: Place, path: Path) -> None:
        if type(value) in _ATOMS:
            return
        inner = statics.find_array(value)
        if inner is None and self._leaving:
            inner = statics.find_array(value, tracers_only=True)
        if inner is not None:
            raise StaticError(
                "Taking an object apart",
                where=text(place.root, place.path + path),
                found=[
                    f"a {type(value).__name__} that is a static value",
                    f"an array in it, at {'.'.join(map(str, inner)) or 'its top'}",
                ],
                why="A static value is part of the compiled program: an array in it would be frozen there, or leak.",
                ways=[
                    "Keep the array in an attribute of its own, or in a Variable: module.array = value.",
                    "Register the type as a pytree: jax.tree_util.register_dataclass.",
                ],
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """Wraps an argument that is a static value as a whole."""

    value: Any


def assemble(part: Part, leaves: Sequence[Any], values: Sequence[Any], objects: Sequence[Any]) -> list[Any]:
    """Runs a region's program.

    Args:
      part: the region.
      leaves: its leaves, in order.
      values: its static values and rebuilders, in order.
      objects: objects by number.

    Returns:
      The entries at the top: one for each attribute of a node, one for a cell or an argument.
    """
    # Backwards, so that the children of every tree are on the stack when the tree is reached: no recursion.
    stack: list[Any] = []
    leaf, value, child = len(leaves), len(values), len(part.region.children)
    for op in reversed(part.region.ops):
        match op[0]:
            case _Op.LEAF:
                leaf -= 1
                stack.append(leaves[leaf])
            case _Op.OBJECT:
                child -= 1
                stack.append(objects[part.region.children[child]])
            case _Op.TREE:
                value -= 1
                count = op[2]
                below = stack[len(stack) - count :][::-1]
                del stack[len(stack) - count :]
                stack.append(values[value](below))
            case _:
                value -= 1
                stack.append(values[value])
    return stack[::-1]


def gradient_values(part: Part) -> list[Any]:
    """The values of a part for a container of gradients: None for what is static by nature, not by its owner's word."""
    kinds = [op[0] for op in part.region.ops if op[0] not in (_Op.LEAF, _Op.OBJECT)]
    return [None if kind is _Op.STATIC else value for kind, value in zip(kinds, part.values, strict=True)]


def make_empty(part: Part) -> Any:
    """Makes the object at the top of a region, without contents, so that cycles can refer to it."""
    assert part.cls is not None, "an argument is no object"
    kind = _CONTAINERS.get(part.cls) or kind_of(part.cls)
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
