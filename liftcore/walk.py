"""The walk that takes object forests apart into regions (`liftcore.structure`)."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from liftcore import captures, functions, statics
from liftcore.errors import StaticError, StructureError
from liftcore.families import kind_of
from liftcore.paths import CAPTURED, Path, like_jax, plain_key, text
from liftcore.protocol import Node, Reference
from liftcore.structure import CONTAINERS, ONE_LEAF, Code, Forest, Found, Op, Part, Place, Region, object_kind

__all__ = ["Static", "Walk", "described", "is_leaf", "opened"]


class _Mode(enum.Enum):
    """Where the walk is: in ARGUMENT Python numbers are leaves, in OBJECT lists and dicts have identity."""

    ARGUMENT = "argument"
    OBJECT = "object"
    TREE = "tree"
    STATIC = "static"


_NUMBERS = (bool, int, float, complex)
_ATOMS = frozenset((str, bytes, type(None), bool, int, float, complex, type, types.BuiltinFunctionType))
_FUNCTIONS = frozenset((types.FunctionType, types.MethodType))
_TEXT_DTYPES = frozenset("OSUMm")


@functools.cache
def _is_leaf_type(cls: type) -> bool | None:
    """Whether all instances are leaves; None where it depends on the instance."""
    if issubclass(cls, (jax.core.Tracer, jax.Array, jax.ShapeDtypeStruct, jax.Ref)):
        return True
    # JAX hands out some constants as subclasses of Python's numbers, with a dtype.
    return None if issubclass(cls, (np.ndarray, np.generic, *_NUMBERS)) and cls not in _NUMBERS else False


def is_leaf(value: Any) -> bool:
    """Whether a value is an array to JAX: arrays, NumPy arrays and scalars, keys, `ShapeDtypeStruct`, `jax.Ref`.

    Example:
      >>> is_leaf(np.ones(2)), is_leaf("text")
      (True, False)
    """
    # Decided by the type: `isinstance` would ask the value for its class, and modules may answer slowly.
    by_type = _is_leaf_type(type(value))  # type: ignore[arg-type]
    if by_type is None:
        dtype = getattr(value, "dtype", None)
        return dtype is not None and dtype.kind not in _TEXT_DTYPES
    return by_type


# No tree is deeper: Python and JAX walk trees by recursion.
_DEEPEST = 1000

_LEAF = (Op.LEAF,)
_OBJECT = (Op.OBJECT,)


def _has_identity(value: Any, mode: _Mode) -> bool:
    if type(value) in CONTAINERS:
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


def _tree(entry: _Entry) -> _Tree | None:
    """Takes one level of a tree apart: its key, how to rebuild it, its children; None for a value that is no tree."""
    value, path, mode, owners, seen = entry
    cls = type(value)

    def children(pairs: Iterable[tuple[Any, Any]], mode: _Mode = mode) -> list[_Entry]:
        return [(child, (*path, key), mode, owners, seen) for key, child in pairs]

    if cls is tuple or cls is list:
        return (cls, len(value)), cls, children(enumerate(value))
    if cls is dict:
        keys = tuple(like_jax(value))
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
        return (cls,), Code(_rebuild_method, ("__func__", "__self__")), children(pairs)
    if cls is functools.partial:
        pairs = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        return (cls,), Code(_rebuild_partial, ("func", "args", "keywords")), children(pairs, _Mode.TREE)
    if cls is types.FunctionType:
        found = functions.parts(value, seen)
        if not found:
            return None
        seen |= {id(value)}
        fn = functions.origin(value)
        pairs = [(functions.label(fn, slot), child) for slot, child in found.items()]
        key = (cls, statics.key(fn), tuple(found))
        rebuild = functools.partial(_rebuild_function, fn, tuple(found))
        return key, Code(rebuild, tuple(name for name, _ in pairs)), children(pairs, _Mode.TREE)
    if isinstance(value, functions.Wrapper):
        if not functions.reaches(value, seen):
            return None
        names = [(getattr(function, "__name__", index), function) for index, function in enumerate(value.functions)]
        wrapper = Code(value.around, tuple(name for name, _ in names))
        return (cls, value.key()), wrapper, children(names, _Mode.TREE)
    if cls in _ATOMS or jax.tree_util.all_leaves((value,)):
        return None
    with_keys, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda other: other is not value)
    _, auxiliary = treedef.node_data()  # type: ignore[attr-defined]
    inner = _Mode.ARGUMENT if mode is _Mode.ARGUMENT else _Mode.TREE
    owners = (*owners, cls)
    return (
        (cls, statics.key(auxiliary), len(with_keys)),
        functools.partial(_rebuild_pytree, treedef),
        children(((plain_key(keys[0]), child) for keys, child in with_keys), inner),
    )


def opened(value: Any) -> tuple[Hashable, list[Any]] | None:
    """One level of a tree: its key, which says what it is besides its children, and these; None if it is no tree.

    Example:
      >>> opened({"b": 1, "a": 2})[1], opened("text")
      ([2, 1], None)
    """
    tree = _tree((value, (), _Mode.TREE, (), frozenset()))
    return None if tree is None else (tree[0], [entry[0] for entry in tree[2]])


def described(value: Any) -> str:
    """A value for messages: an array by its shape, whatever tracer stands for it; anything else by its class.

    Example:
      >>> described(np.ones((2, 3))), described(None), described([1])
      ('an array of shape (2, 3)', 'None', 'a list')
    """
    if is_leaf(value):
        return f"an array of shape {np.shape(value)}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """Wraps what is a static value as a whole, whatever it is."""

    value: Any


class Walk:
    """Takes object forests apart; numbers objects with identity in the order in which it meets them.

    The order is argument by argument, breadth first: a shared object belongs to the place nearest to the top of the
    first argument that leads to it.

    Args:
      attempted: what is being done, for messages.
      objects: objects that have their numbers already, in order.
      places: where those are.
      outside: ids of objects that are captured and stay what they are.
      leaving: whether values leave a trace, so that no new static value may hold a tracer.
    """

    def __init__(
        self,
        attempted: str,
        objects: Sequence[Any] = (),
        places: Sequence[Place] = (),
        *,
        leaving: bool = False,
        outside: Container[int] = (),
    ) -> None:
        self._outside = outside
        self._attempted = attempted
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
        return self._found(Place(name, ()), None, [(value, (), _Mode.ARGUMENT, (), frozenset())], ("argument",))

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
            if is_leaf(value):  # what most cells hold
                region = Region(header, ONE_LEAF, (), ((),), ())
                return Found(Part(region, (), cls, metadata=metadata), [value], [()], [])
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
            if type(value) is Static:
                value, mode = value.value, _Mode.STATIC
                self._check_stateless(value, place, path)
            if mode is not _Mode.STATIC:
                if is_leaf(value) or (mode is _Mode.ARGUMENT and type(value) in _NUMBERS):
                    ops.append(_LEAF)
                    leaves.append(value)
                    leaf_keys.append(path)
                    leaf_owners.append(owners)
                    continue
                if _has_identity(value, mode) and not self._is_outside(place, value):
                    ops.append(_OBJECT)
                    inside = () if obj is None else (type(obj),)
                    children.append(self._number(value, place, path, (*inside, *owners)))
                    child_keys.append(path)
                    child_owners.append(owners)
                    continue
                tree = None if self._is_outside(place, value) else _tree(entry)
                if tree is not None:
                    if len(path) > _DEEPEST:
                        raise self._endless(place, path)
                    key, maker, below = tree
                    ops.append((Op.TREE, key, len(below)))
                    values.append(maker)
                    stack.extend(reversed(below))
                    continue
            self._check_static(value, place, path)
            ops.append((Op.KEPT if mode is _Mode.STATIC else Op.STATIC, statics.key(value)))
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

    def _endless(self, place: Place, path: Path) -> StructureError:
        return StructureError(
            self._attempted,
            where=text(place.root, place.path + path[:3]),
            found=[f"containers in it are nested more than {_DEEPEST} deep"],
            why="A list or dict that holds itself is no tree, and a tree has an end.",
            ways=["Hang it on an object: a list below a lift.Module may hold itself."],
        )

    def _is_outside(self, place: Place, value: Any) -> bool:
        return place.root == CAPTURED and id(value) in self._outside

    def _check_stateless(self, value: Any, place: Place, path: Path) -> None:
        if _has_identity(value, _Mode.ARGUMENT):
            raise StaticError(
                self._attempted,
                where=text(place.root, place.path + path),
                found=[f"a {type(value).__name__}, which has state", "it was to be a static value"],
                why="A static value is part of the compiled program; updates of it would be lost.",
                ways=["Pass it as an ordinary argument: its configuration is static without being asked."],
            )

    def _check_static(self, value: Any, place: Place, path: Path) -> None:
        if type(value) in _ATOMS:
            return
        if self._leaving and isinstance(value, Iterator):
            raise StaticError(
                self._attempted,
                where=text(place.root, place.path + path),
                found=[f"a {type(value).__name__}, which can be gone through once"],
                why="What leaves a compiled program is made once, and handed out again at each call.",
                ways=["Return a list: list(values)."],
            )
        inner = None
        # What a function closes over is a constant of the trace, as in JAX; but a tracer may not leave in it.
        if self._leaving:
            inner = statics.find_array(value, tracers_only=True)
        if inner is None and type(value) not in _FUNCTIONS:
            inner = statics.find_array(value)
        if inner is not None:
            raise StaticError(
                self._attempted,
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
