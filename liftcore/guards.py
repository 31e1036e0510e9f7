"""Guards: whether a value is still what a call before has seen, checked without taking it apart anew.

A `Shape` knows the structure of one tree and takes others like it apart, level by level, many values at a time. A
`Known` knows one object graph by the identity of what is in it; it is kept in its root, as long as the root lives, and
never refers to the root itself. Both give the leaves as they are now. Neither says yes where the full walk
(`liftcore.walk`) would find another structure; both may say no where it finds the same.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from liftcore import functions, statics
from liftcore.buckets import Pick, picker
from liftcore.families import kind_of
from liftcore.paths import like_jax
from liftcore.protocol import Node, Reference
from liftcore.structure import CONTAINERS, Found, Op, object_kind
from liftcore.walk import Walk

__all__ = ["Branch", "Known", "Shape", "Taken", "Unguarded", "branches"]

_flat = itertools.chain.from_iterable
_serial = itertools.count()


class Unguarded(Exception):
    """There is something that cannot be watched: no plan."""


# Values of these types are the same if they have one type and are equal.
_ATOMS = frozenset((str, bytes, bool, int, type(None)))


class _Statics:
    """Static values in fixed places among others, whose types are checked elsewhere."""

    def __init__(self, values: Sequence[Any], positions: Sequence[int]) -> None:
        atoms = [position for position in positions if type(values[position]) in _ATOMS]
        self._atoms = picker(atoms)
        self._expected = list(self._atoms(values))
        self._others = [
            (position, _weak(values[position]), statics.key(values[position]))
            for position in positions
            if position not in set(atoms)
        ]

    def hold(self, values: Sequence[Any]) -> bool:
        """Whether they are the same static values."""
        # Equal in C, by identity first; one of another type has been refused before.
        if self._expected and list(self._atoms(values)) != self._expected:
            return False
        for position, same, key in self._others:
            value = values[position]
            if (same is None or same() is not value) and statics.key(value) != key:
                return False
        return True


def _weak(value: Any) -> Callable[[], Any] | None:
    """A weak reference to a value whose key never changes; None for any other."""
    if not statics.settled(value):
        return None
    try:
        return weakref.ref(value)
    except TypeError:
        return None


@dataclasses.dataclass(slots=True)
class Branch:
    """One instruction of a region, with those of its children: the program as a tree."""

    number: int
    op: Any
    below: list[Branch]

    def ops(self) -> list[Op]:
        """Its instruction and all below it, in the region's order."""
        found: list[Op] = []
        pending = [self]
        while pending:
            branch = pending.pop()
            found.append(branch.op[0])
            pending += reversed(branch.below)
        return found


def branches(ops: Sequence[Any]) -> list[Branch]:
    """A region's program as trees, one for each entry at its top."""
    stack: list[Branch] = []
    for number in reversed(range(len(ops))):
        count = ops[number][2] if ops[number][0] is Op.TREE else 0
        below = [stack.pop() for _ in range(count)]
        stack.append(Branch(number, ops[number], below))
    return stack[::-1]


@dataclasses.dataclass(slots=True)
class Taken:
    """A tree, taken apart.

    Attributes:
      leaves: its leaves, in the order of its region.
      objects: the objects with identity in it, likewise.
      statics: its static values, likewise.
    """

    leaves: Sequence[Any]
    objects: Sequence[Any]
    statics: Sequence[Any]


class _Level:
    """All that stands at one depth of a tree, and how to get to what stands below."""

    def __init__(self, values: Sequence[Any], standing: Sequence[Branch]) -> None:
        ops = [branch.op[0] for branch in standing]
        self._types = list(map(type, values))
        leaves, objects, static = (
            [index for index, op in enumerate(ops) if op in wanted]
            for wanted in ((Op.LEAF,), (Op.OBJECT,), (Op.STATIC, Op.KEPT))
        )
        self._statics = _Statics(values, static) if static else None
        self.picks = [(index, picker(some)) for index, some in enumerate((leaves, objects, static)) if some]
        trees = [index for index, op in enumerate(ops) if op is Op.TREE]
        nodes = [index for index in trees if isinstance(kind_of(self._types[index]), Node)]
        sequences = [index for index in trees if self._types[index] in (tuple, list)]
        others = [index for index in trees if index not in {*nodes, *sequences}]
        self._nodes = picker(nodes, len(values)) if nodes else None
        self._sequences = picker(sequences, len(values)) if sequences else None
        self._items = [kind_of(self._types[index]).items for index in nodes]  # type: ignore[union-attr]
        # Where a class shows its own dict for these keys, it does so for every object with these keys.
        self._own = all(_is_own(items, values[index]) for items, index in zip(self._items, nodes, strict=True))
        contents = self._contents([values[index] for index in nodes])
        self._keys, self._sizes = list(_flat(contents)), list(map(len, contents))
        self._lengths = [len(values[index]) for index in sequences]
        self._others = [(index, _top(values[index])) for index in others]
        self.order = [branch for index in (*nodes, *sequences, *others) for branch in standing[index].below]

    def _contents(self, nodes: Iterable[Any]) -> list[Mapping[Any, Any]]:
        if self._own:
            return list(map(object.__getattribute__, nodes, itertools.repeat("__dict__")))
        return list(map(_applied, self._items, nodes))

    def is_like(self, values: Sequence[Any]) -> bool:
        """Whether these values are of the types and have the static values that were there."""
        return list(map(type, values)) == self._types and (self._statics is None or self._statics.hold(values))

    def below(self, values: Sequence[Any]) -> list[Any] | None:
        """What stands below; None if it is not what stood there."""
        found: list[Any] = []
        if self._nodes is not None:
            contents = self._contents(self._nodes(values))
            if list(_flat(contents)) != self._keys or list(map(len, contents)) != self._sizes:
                return None
            found += _flat(map(dict.values if self._own else _VALUES, contents))  # type: ignore[arg-type]
        if self._sequences is not None:
            sequences = self._sequences(values)
            if list(map(len, sequences)) != self._lengths:
                return None
            found += _flat(sequences)
        for index, expected in self._others:
            below = _children(values[index], expected)
            if below is None:
                return None
            found += below
        return found


_VALUES = operator.methodcaller("values")


def _applied(items: Callable[[Any], Mapping[Any, Any]], node: Any) -> Mapping[Any, Any]:
    return items(node)


def _is_own(items: Callable[[Any], Mapping[Any, Any]], node: Any) -> bool:
    try:
        return items(node) is object.__getattribute__(node, "__dict__")
    except AttributeError:
        return False


def _opened(value: Any) -> tuple[list[Any], Hashable]:
    """Children of one level of a pytree, and what it is besides them."""
    children, treedef = jax.tree_util.tree_flatten(value, is_leaf=lambda other: other is not value)
    return children, (statics.key(treedef.node_data()[1]), len(children))  # type: ignore[attr-defined]


def _top(value: Any) -> Hashable:
    """What one level of a dict or pytree is, by value."""
    return tuple(map(statics.key, like_jax(value))) if type(value) is dict else _opened(value)[1]


def _children(value: Any, expected: Any) -> Iterable[Any] | None:
    if type(value) is dict:
        keys = list(like_jax(value))
        return [value[key] for key in keys] if tuple(map(statics.key, keys)) == expected else None
    children, top = _opened(value)
    return children if top == expected else None


_CODE = (types.FunctionType, types.MethodType, functools.partial)


def _is_code(value: Any) -> bool:
    return type(value) in _CODE or isinstance(value, functions.Wrapper)


def _is_plain(value: Any) -> bool:
    """Whether JAX's own comparison of one level of a tree is exact."""
    cls = type(value)
    if cls is tuple or cls is list or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return True
    if not isinstance(value, Mapping) or not all(type(key) in (str, int) for key in value):
        return False
    if cls is dict:
        return True
    # Equal keys are one key; anything else that a pytree remembers may be equal and differ, as 1 and True do.
    _, treedef = jax.tree_util.tree_flatten(value)
    return treedef.node_data()[1] == tuple(value)  # type: ignore[no-any-return, attr-defined]


def _sorted(numbers: Sequence[int]) -> Pick:
    """Picks what has these numbers in the order of the numbers."""
    return picker(sorted(range(len(numbers)), key=numbers.__getitem__), len(numbers))


class Shape:
    """The structure of a tree that was taken apart once.

    Args:
      top: its region's program.
      value: the tree.

    Raises:
      Unguarded: code around objects is in it.
    """

    def __init__(self, top: Branch, value: Any) -> None:
        self._treedef = None
        self._levels: list[_Level] = []
        order: list[Branch] = []
        values, standing, plain = [value], [top], True
        while standing:
            for one, branch in zip(values, standing, strict=True):
                kind = branch.op[0]
                plain &= kind is Op.LEAF or one is None or (kind is Op.TREE and _is_plain(one))
                if kind is Op.TREE and _is_code(one):
                    raise Unguarded
            level = _Level(values, standing)
            self._levels.append(level)
            order += standing
            below = level.below(values)
            assert below is not None, "a value is like itself"
            values, standing = below, level.order
        self.leaf_types = []
        if plain:
            leaves, self._treedef = jax.tree_util.tree_flatten(value)
            self.leaf_types = list(map(type, leaves))
            return
        self._leaves, self._objects, self._statics = (
            _sorted([branch.number for branch in order if branch.op[0] in wanted])
            for wanted in ((Op.LEAF,), (Op.OBJECT,), (Op.STATIC, Op.KEPT))
        )

    def take(self, value: Any) -> Taken | None:
        """Takes a tree apart; None if it is not like the first one."""
        if self._treedef is not None:
            leaves, treedef = jax.tree_util.tree_flatten(value)
            if treedef != self._treedef or list(map(type, leaves)) != self.leaf_types:
                return None
            return Taken(leaves, (), ())
        found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        values: list[Any] | None = [value]
        for level in self._levels:
            if values is None or not level.is_like(values):
                return None
            for which, pick in level.picks:
                found[which].extend(pick(values))
            values = level.below(values)
        leaves, objects, static = found
        return Taken(self._leaves(leaves), self._objects(objects), self._statics(static))


class _Words:
    """Metadata of cells, told apart by identity: a family that keeps plans gives one mapping until it changes."""

    def __init__(self, cells: Sequence[Any], kinds: Sequence[Reference]) -> None:
        self._reads = [kind.metadata for kind in kinds]
        self._types = list(map(type, cells))
        self._expected = self._of(cells)
        if not self.hold(cells):
            raise Unguarded
        if not all(statics.settled(value) for words in self._expected for value in words.values()):
            raise Unguarded

    def _of(self, cells: Sequence[Any]) -> list[Mapping[str, Any]]:
        return [read(cell) for read, cell in zip(self._reads, cells, strict=True)]

    def hold(self, cells: Sequence[Any]) -> bool:
        """Whether every cell is of the class that it was, and has the metadata that it had."""
        return list(map(type, cells)) == self._types and all(map(operator.is_, self._of(cells), self._expected))


class _Brief:
    """A short look at nodes that tell their changes: enough as long as nobody has told any.

    It sees what changed without a word as well, except an equal value in the place of another where both are strings.
    """

    def __init__(self, contents: Sequence[dict[Any, Any]], lists: Sequence[list[Any]]) -> None:
        self._contents = [dict(content) for content in contents]
        self._odd = [
            (index, name)
            for index, content in enumerate(contents)
            for name, value in content.items()
            if not _is_equal_only_to_itself(value)
        ]
        self._expected = [contents[index][name] for index, name in self._odd]
        self._listed = list(_flat(lists))

    def holds(self, contents: Sequence[dict[Any, Any]], lists: Sequence[list[Any]]) -> bool:
        """Whether all entries are what they were."""
        try:
            if contents != self._contents:
                return False
        except Exception:  # an equality may raise whatever its author liked
            return False
        if self._odd and not all(map(operator.is_, [contents[at][name] for at, name in self._odd], self._expected)):
            return False
        return all(map(operator.is_, _flat(lists), self._listed))


def _is_equal_only_to_itself(value: Any) -> bool:
    cls = type(value)
    return cls in (str, type(None), types.FunctionType, types.BuiltinFunctionType) or (
        isinstance(kind_of(cls), Reference) or cls.__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    )


@dataclasses.dataclass(slots=True)
class _Tree:
    """A tree below an object that is taken apart at each call: where it stands, its shape, the objects in it."""

    position: int
    shape: Shape
    children: tuple[int, ...]


class _Pool:
    """Where the leaves of a graph come from, while it is laid out: (source, position there) for each, by object."""

    def __init__(self) -> None:
        self.sources: dict[int, list[tuple[str, int]]] = collections.defaultdict(list)
        self._counts: dict[str, int] = collections.Counter()

    def add(self, number: int, source: str, count: int = 1) -> None:
        """Notes the next leaves of an object."""
        start = self._counts[source]
        self._counts[source] += count
        self.sources[number] += [(source, start + index) for index in range(count)]

    def picker(self, sources: Sequence[str], objects: int) -> Pick:
        """Picks all leaves, by object, from what the sources give one after the other."""
        starts = dict(zip(sources, itertools.accumulate([0, *map(self._counts.__getitem__, sources)]), strict=False))
        positions = [starts[source] + at for number in range(objects) for source, at in self.sources[number]]
        return picker(positions, sum(self._counts.values()))


class Known:
    """An object graph that is watched.

    Args:
      root: the object at its top. It is not kept here, since what is known of it is kept in it.

    Attributes:
      serial: tells it from any other one.
      parts: part of each object, by number; the root is the first.
      order: id of each object, by number.

    Raises:
      Unguarded: a family does not say how its objects are watched, or something in the graph cannot be.
    """

    def __init__(self, root: Any) -> None:
        forest = Walk("a plan").forest({"root": root})
        objects = forest.objects
        kinds = [object_kind(obj) for obj in objects]
        self.serial = next(_serial)
        self.parts = [found.part for found in forest.found]
        self.order = list(map(id, objects))
        self._rest = objects[1:]
        self._lay_out_nodes(objects, kinds)
        pool = _Pool()
        self._lay_out_entries(root, forest.found, pool)
        self._lay_out_cells(objects, kinds, pool)
        self._pick_leaves = pool.picker(("cell", "raw", "constant", "tree"), len(objects))
        self._mixed = bool(self._raw or self._constant or self._trees or self._cell_trees)

    def _lay_out_nodes(self, objects: Sequence[Any], kinds: Sequence[Any]) -> None:
        by_items: dict[Any, list[int]] = {}
        lists: list[int] = []
        for number, kind in enumerate(kinds):
            if type(objects[number]) is list:
                lists.append(number)
            elif isinstance(kind, Node):
                # What the walk sees of a node is a dict that lives with it: to look there is to see every change.
                items = kind.items(objects[number])
                if type(items) is not dict or kind.items(objects[number]) is not items or kind.static(objects[number]):
                    raise Unguarded
                by_items.setdefault(kind.items, []).append(number)
        # Where the root is one of them, it comes first: the root is not kept.
        self._held = [
            (items, 0 in some, [objects[number] for number in some if number], kinds[some[0]])
            for items, some in by_items.items()
        ]
        self._stamps = list({kind.stamp or _no_stamp: None for kind in kinds if kind not in CONTAINERS.values()})
        self._stamped: list[Any] | None = None
        self._brief: _Brief | None = None
        self._lists = [objects[number] for number in lists]
        self._nodes = [number for some in by_items.values() for number in some] + lists
        self._types = [type(objects[number]) for some in by_items.values() for number in some]
        contents = self._contents(objects[0])
        self._keys, self._sizes = list(_flat(contents)), list(map(len, contents))
        self._lengths = list(map(len, self._lists))
        if not all(type(key) is str for key in self._keys):
            raise Unguarded

    def _lay_out_entries(self, root: Any, found: Sequence[Found], pool: _Pool) -> None:
        entries = self._entries(root, self._contents(root))
        assert entries is not None, "a graph is like itself"
        self._fixed: list[Any] = []
        self._keyed: list[tuple[Any, Hashable]] = []
        self._constant: list[Any] = []
        self._trees: list[_Tree] = []
        self._raw: list[int] = []
        fixed: list[int] = []
        position = 0
        for number in self._nodes:
            region, leaves = found[number].part.region, iter(found[number].leaves)
            children = iter(region.children)
            for branch in branches(region.ops):
                value = entries[position]
                ops = branch.ops()
                mine = [next(leaves) for op in ops if op is Op.LEAF]
                hanging = tuple(next(children) for op in ops if op is Op.OBJECT)
                if branch.op[0] is Op.LEAF:
                    self._raw.append(position)
                    pool.add(number, "raw")
                elif branch.op[0] is Op.TREE and not _is_settled(branch, value):
                    self._trees.append(_Tree(position, Shape(branch, value), hanging))
                    pool.add(number, "tree", len(mine))
                else:
                    fixed.append(position)
                    self._fixed.append(value)
                    self._constant += mine
                    pool.add(number, "constant", len(mine))
                    if branch.op[0] in (Op.STATIC, Op.KEPT) and not statics.settled(value):
                        self._keyed.append((value, statics.key(value)))
                position += 1
        self._pick_fixed, self._pick_raw = picker(fixed, len(entries)), picker(self._raw)

    def _lay_out_cells(self, objects: Sequence[Any], kinds: Sequence[Any], pool: _Pool) -> None:
        cells = [number for number, kind in enumerate(kinds) if isinstance(kind, Reference)]
        self._words = _Words([objects[number] for number in cells], [kinds[number] for number in cells])
        readers = {kinds[number].read_all or functools.partial(_each, kinds[number].read) for number in cells}
        if len(readers) > 1:
            raise Unguarded
        self._read = readers.pop() if readers else list
        self._cells = [objects[number] for number in cells if number]
        plain = [number for number in cells if self.parts[number].region.ops == ((Op.LEAF,),)]
        self._root_is_cell = cells[:1] == [0]
        if self._root_is_cell and plain[:1] != [0]:
            raise Unguarded
        self._plain = [objects[number] for number in plain if number]
        for number in plain:
            pool.add(number, "cell")
        self._cell_trees: list[_Tree] = []
        for number in cells:
            if number not in pool.sources:
                region = self.parts[number].region
                if region.children:
                    raise Unguarded
                (branch,) = branches(region.ops)
                self._cell_trees.append(_Tree(number, Shape(branch, *self._read([objects[number]])), ()))
                pool.add(number, "tree", len(region.leaf_keys))

    def _contents(self, root: Any) -> list[dict[Any, Any]]:
        """The dicts of all nodes."""
        contents: list[dict[Any, Any]] = []
        for items, first, some, _ in self._held:
            if first:
                contents.append(items(root))
            contents += map(items, some)
        return contents

    def _classes(self, root: Any) -> list[type]:
        classes: list[type] = []
        for _, first, some, _ in self._held:
            if first:
                classes.append(type(root))
            classes += map(type, some)
        return classes

    def _entries(self, root: Any, contents: Sequence[dict[Any, Any]]) -> list[Any] | None:
        """What all nodes, dicts and lists contain, one after the other; None if classes, keys or sizes are others."""
        if self._classes(root) != self._types or list(map(len, contents)) != self._sizes:
            return None
        if list(_flat(contents)) != self._keys or list(map(len, self._lists)) != self._lengths:
            return None
        return [*_flat(map(dict.values, contents)), *_flat(self._lists)]

    def objects(self, root: Any) -> list[Any]:
        """All objects, by number."""
        return [root, *self._rest]

    def leaves(self, root: Any) -> Sequence[Any] | None:
        """All leaves as they are now, by object, in a new list; None if the graph is not what it was."""
        stamped = [stamp() for stamp in self._stamps]
        contents = self._contents(root)
        if self._brief is not None and stamped == self._stamped:
            if self._classes(root) != self._types or list(map(len, self._lists)) != self._lengths:
                return None
            if not self._brief.holds(contents, self._lists):
                return None
            return self._read([root, *self._plain] if self._root_is_cell else self._plain)
        entries = self._entries(root, contents)
        if entries is None or not all(map(operator.is_, self._pick_fixed(entries), self._fixed)):
            return None
        if not self._words.hold([root, *self._cells] if self._root_is_cell else self._cells):
            return None
        for value, key in self._keyed:
            if statics.key(value) != key:
                return None
        self._look_briefly(root, contents, stamped)
        leaves = self._read([root, *self._plain] if self._root_is_cell else self._plain)
        return self._mix(root, entries, leaves) if self._mixed else leaves

    def _look_briefly(self, root: Any, contents: Sequence[dict[Any, Any]], stamped: list[Any]) -> None:
        """Next time a short look is enough, if every node tells its changes, and cells hold all leaves."""
        self._brief = None
        if self._mixed or self._keyed or None in stamped:
            return
        for _, first, some, kind in self._held:
            if not all(map(kind.tells, [root, *some] if first else some)):
                return
        # In this order: another thread that sees the stamp sees the rest.
        self._brief, self._stamped = _Brief(contents, self._lists), stamped

    def _mix(self, root: Any, entries: Sequence[Any], leaves: list[Any]) -> Sequence[Any] | None:
        """Puts all leaves that do not stand in cells between those that do."""
        leaves += self._pick_raw(entries)
        leaves += self._constant
        objects = self.objects(root)
        values = [(tree, entries[tree.position]) for tree in self._trees]
        values += [(tree, *self._read([objects[tree.position]])) for tree in self._cell_trees]
        for tree, value in values:
            taken = tree.shape.take(value)
            if taken is None or not all(map(operator.is_, taken.objects, map(objects.__getitem__, tree.children))):
                return None
            leaves += taken.leaves
        return list(self._pick_leaves(leaves))


def _no_stamp() -> None:
    return None


def _each(read: Callable[[Any], Any], cells: Iterable[Any]) -> list[Any]:
    return list(map(read, cells))


def _is_settled(branch: Branch, value: Any) -> bool:
    """Whether a tree has the same leaves, objects and static values as long as it is the same tree."""
    pending = [(branch, value)]
    while pending:
        branch, value = pending.pop()
        cls, op = type(value), branch.op[0]
        if op in (Op.STATIC, Op.KEPT) and not statics.settled(value):
            return False
        if op is not Op.TREE:
            continue
        if cls is tuple or (issubclass(cls, tuple) and not cls.__dictoffset__):
            below = tuple.__iter__(value)
        elif cls is types.MethodType:
            below = iter((value.__func__, value.__self__))
        elif isinstance(kind := kind_of(cls), Node):  # a tree of a family is immutable
            below = iter(kind.items(value).values())
        else:
            return False
        pending += zip(branch.below, below, strict=True)
    return True
