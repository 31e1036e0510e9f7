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

from liftcore import functions, statics
from liftcore.buckets import Pick, picker
from liftcore.contents import ATOMS
from liftcore.families import kind_of
from liftcore.paths import like_jax
from liftcore.protocol import Node, Reference
from liftcore.structure import CONTAINERS, Found, Op, object_kind
from liftcore.walk import Walk, opened

__all__ = ["Branch", "Known", "Shape", "Taken", "Unguarded", "branches"]

_flat = itertools.chain.from_iterable
_serial = itertools.count()


class Unguarded(Exception):
    """There is something that cannot be watched: no plan."""


# Values of these types are the same if they have one type and are equal: zeros and NaNs among floats are not.
_ATOMS = ATOMS - {float, complex}


class _Statics:
    """Static values, whose types are checked elsewhere."""

    def __init__(self, values: Sequence[Any]) -> None:
        atoms = [position for position, value in enumerate(values) if type(value) in _ATOMS]
        self._atoms = picker(atoms, len(values))
        self._expected = list(self._atoms(values))
        self._others = [
            (position, _weak(value), statics.key(value))
            for position, value in enumerate(values)
            if type(value) not in _ATOMS
        ]

    def hold(self, values: Sequence[Any]) -> bool:
        """Whether they are the same static values."""
        # Equal in C, by identity first; one of another type has been refused before.
        if list(self._atoms(values)) != self._expected:
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
    """Some values, taken apart.

    Attributes:
      leaves: their leaves, in the order of their regions.
      objects: the objects with identity in them, likewise.
      statics: their static values, likewise.
    """

    leaves: Sequence[Any]
    objects: Sequence[Any]
    statics: Sequence[Any]


class _Source:
    """The function that takes values of one structure apart, while it is written.

    One line after the other, without a loop, is what Python runs fastest, as `dataclasses` does for an `__init__`. An
    unpacking that finds more or fewer values than there were raises ValueError, so that nothing else counts them.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"Taken": Taken}
        self._count = itertools.count()

    def name(self) -> str:
        """A new name for something local."""
        return f"v{next(self._count)}"

    def constant(self, value: Any) -> str:
        """The name of a value that is known now."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def let(self, name: str, value: str) -> None:
        """Gives a value a name."""
        self._lines.append(f"{name} = {value}")

    def check(self, condition: str) -> None:
        """The values are others where this does not hold."""
        self._lines.append(f"if not ({condition}): return None")

    def check_types(self, values: str, those: Sequence[Any]) -> None:
        """These values are of the types of those."""
        self.check(f"list(map(type, {values})) == {self.constant(list(map(type, those)))}")

    def unpack(self, values: str, count: int) -> list[str]:
        """Gives so many values a name each."""
        names = [self.name() for _ in range(count)]
        self.let(f"[{', '.join(names)}]", values)
        return names

    def function(self, result: str) -> Callable[[Any], Any]:
        """The function of `v`."""
        lines = ("def take(v):", *self._lines, f"return {result}")
        exec("\n    ".join(lines), self._names)
        take: Callable[[Any], Any] = self._names["take"]
        return take


def _open(source: _Source, name: str, tree: Any, branch: Branch) -> list[tuple[Branch, Any, str]]:
    """Writes how a tree is opened; branch, value and name of each child."""
    cls, kind, below = type(tree), kind_of(type(tree)), branch.below
    source.check(f"type({name}) is {source.constant(cls)}")
    if cls is dict or isinstance(kind, Node):
        return _open_contents(source, name, tree, branch, kind.items if isinstance(kind, Node) else None)
    level = opened(tree)
    if cls is not list:
        assert level is not None, "a tree is taken apart as it was before"
        # Of mappings, those that are their entries and nothing else; of named tuples, those that JAX takes for tuples.
        is_entries = isinstance(tree, Mapping) and level[0] == (cls, statics.key(tuple(tree)), len(tree))
        if is_entries and all(map(operator.is_, level[1], tree.values())):
            return _open_contents(source, name, tree, branch, None)
        if not (issubclass(cls, tuple) and len(level[1]) == len(tree) and all(map(operator.is_, level[1], tree))):
            found = source.name()
            source.let(found, f"{source.constant(opened)}({name})")
            source.check(f"{found} is not None and {found}[0] == {source.constant(branch.op[1])}")
            return list(zip(below, level[1], source.unpack(f"{found}[1]", len(below)), strict=True))
    if below and all(child.op[0] is Op.LEAF for child in below):
        source.check(f"len({name}) == {len(below)}")
        return [(below[0], tree, f"*{name}")]
    return list(zip(below, tree, source.unpack(name, len(below)), strict=True))


def _own_dict(cls: type) -> Callable[[Any], Any] | None:
    """Gets an object's own dict, whatever its class says of attributes; None if its class has none."""
    found = next((vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)), None)
    return found.__get__ if isinstance(found, types.GetSetDescriptorType) else None


def _open_contents(
    source: _Source, name: str, tree: Any, branch: Branch, items: Callable[[Any], Mapping[Any, Any]] | None
) -> list[tuple[Branch, Any, str]]:
    """The same for what has named entries."""
    content = tree if items is None else items(tree)
    inside = name
    # Where a class shows its own dict for these keys, it does so for every object with these keys.
    get = _own_dict(type(tree))
    own = items is not None and get is not None and get(tree) is content
    if items is not None:
        inside = source.name()
        source.let(inside, f"{source.constant(get if own else items)}({name})")
    keys = tuple(content)
    source.check(f"tuple({inside}) == {source.constant(keys)}")
    names = source.unpack(f"{inside}.values()", len(keys))
    if not own:  # equal keys of two types are two keys; names of attributes are of one
        source.check_types(inside, keys)
    entries = dict(zip(keys, zip(content.values(), names, strict=True), strict=True))
    order = like_jax(tree) if type(tree) is dict else keys
    return [(child, *entries[key]) for key, child in zip(order, branch.below, strict=True)]


_CODE = (types.FunctionType, types.MethodType, functools.partial)


def _is_code(value: Any) -> bool:
    return type(value) in _CODE or isinstance(value, functions.Wrapper)


class Shape:
    """The structure of some values that were taken apart once.

    Args:
      tops: the program of each one's region.
      values: the values: trees, leaves, objects or static values.

    Raises:
      Unguarded: code around objects is in them.
    """

    def __init__(self, tops: Sequence[Branch], values: Sequence[Any]) -> None:
        source = _Source()
        # By kind: where it stands, its name, and what stood there.
        found: dict[Op, list[tuple[tuple[int, int], str, Any]]] = collections.defaultdict(list)
        pending = list(zip(itertools.count(), tops, values, source.unpack("v", len(tops)), strict=False))
        while pending:
            root, branch, one, name = pending.pop()
            op = Op.STATIC if branch.op[0] is Op.KEPT else branch.op[0]
            if op is Op.TREE:
                if _is_code(one):
                    raise Unguarded
                pending += [(root, *child) for child in _open(source, name, one, branch)]
            else:
                found[op].append(((root, branch.number), name, one))
        parts = []
        for op in (Op.LEAF, Op.OBJECT, Op.STATIC):
            several = sorted(found[op], key=operator.itemgetter(0))
            part = source.name()
            source.let(part, f"[{', '.join(name for _, name, _ in several)}]")
            those = [one for _, name, some in several for one in (some if name.startswith("*") else (some,))]
            if those:
                source.check_types(part, those)
            if op is Op.STATIC and those:
                source.check(f"{source.constant(_Statics(those).hold)}({part})")
            parts.append(part)
        self._take = source.function(f"Taken({', '.join(parts)})")

    def take(self, values: Sequence[Any]) -> Taken | None:
        """Takes as many values apart; None if they are not like the first ones."""
        try:
            taken: Taken | None = self._take(values)
        except ValueError:  # a list that another thread changes
            return None
        return taken


class _Words:
    """Metadata of cells, told apart by identity: a family that keeps plans gives one mapping until it changes.

    Attributes:
      types: classes of the cells.
    """

    def __init__(self, cells: Sequence[Any], kinds: Sequence[Reference]) -> None:
        self._reads = [kind.metadata for kind in kinds]
        self.types = list(map(type, cells))
        self._expected = self._of(cells)
        if not self.hold(cells):
            raise Unguarded
        if not all(statics.settled(value) for words in self._expected for value in words.values()):
            raise Unguarded

    def _of(self, cells: Sequence[Any]) -> list[Mapping[str, Any]]:
        return [read(cell) for read, cell in zip(self._reads, cells, strict=True)]

    def hold(self, cells: Sequence[Any]) -> bool:
        """Whether every cell has the metadata that it had."""
        return all(map(operator.is_, self._of(cells), self._expected))


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
                kind.tells(objects[number])  # changes from here on count
                items = kind.items(objects[number])
                if type(items) is not dict or kind.items(objects[number]) is not items or kind.static(objects[number]):
                    raise Unguarded
                by_items.setdefault(kind.items, []).append(number)
        # Where the root is one of them, it comes first: the root is not kept.
        self._held = [
            (kinds[some[0]], 0 in some, [objects[number] for number in some if number]) for some in by_items.values()
        ]
        self._stamps = list({kind.stamp or _nothing: None for kind in kinds if kind not in CONTAINERS.values()})
        self._stamped: list[Any] | None = None
        self._brief: _Brief | None = None
        self._lists = [objects[number] for number in lists]
        self._nodes = [number for some in by_items.values() for number in some] + lists
        nodes = self._led(objects[0])
        self._types = _classes(nodes)
        contents = _contents(nodes)
        self._keys, self._sizes = list(_flat(contents)), list(map(len, contents))
        self._lengths = list(map(len, self._lists))
        if not all(type(key) is str for key in self._keys):
            raise Unguarded

    def _lay_out_entries(self, root: Any, found: Sequence[Found], pool: _Pool) -> None:
        entries = self._entries(_contents(self._led(root)))
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
                    self._trees.append(_Tree(position, Shape([branch], [value]), hanging))
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
        self._raw_types = [type(entries[position]) for position in self._raw]

    def _lay_out_cells(self, objects: Sequence[Any], kinds: Sequence[Any], pool: _Pool) -> None:
        cells = [number for number, kind in enumerate(kinds) if isinstance(kind, Reference)]
        self._words = _Words([objects[number] for number in cells], [kinds[number] for number in cells])
        readers = {(kinds[number].read_all, kinds[number].read) for number in cells}
        if len(readers) > 1:
            raise Unguarded
        read_all, read = readers.pop() if readers else (list, _nothing)
        self._read: Callable[[Sequence[Any]], list[Any]] = read_all or functools.partial(_each, read)
        self._cells = [objects[number] for number in cells if number]
        plain = [number for number in cells if self.parts[number].region.is_leaf()]
        self._root_is_cell = cells[:1] == [0]
        if self._root_is_cell and plain[:1] != [0]:
            raise Unguarded
        self._plain = [objects[number] for number in plain if number]
        self._leaf_types = [type(leaf) for number in plain for leaf in self._read([objects[number]])]
        self._leaf_types += self._raw_types
        for number in plain:
            pool.add(number, "cell")
        self._cell_trees: list[_Tree] = []
        for number in cells:
            if number not in pool.sources:
                region = self.parts[number].region
                if region.children:
                    raise Unguarded
                (branch,) = branches(region.ops)
                self._cell_trees.append(_Tree(number, Shape([branch], self._read([objects[number]])), ()))
                pool.add(number, "tree", len(region.leaf_keys))

    def _led(self, root: Any) -> list[tuple[Node, list[Any]]]:
        """All nodes, those of one kind together."""
        return [(kind, [root, *some] if first else some) for kind, first, some in self._held]

    def _entries(self, contents: Sequence[dict[Any, Any]]) -> list[Any] | None:
        """What all nodes, dicts and lists contain, one after the other; None if keys or sizes are others."""
        keys = list(_flat(contents))
        if keys != self._keys or list(map(len, contents)) != self._sizes or set(map(type, keys)) - {str}:
            return None
        return [*_flat(map(dict.values, contents)), *_flat(self._lists)]

    def objects(self, root: Any) -> list[Any]:
        """All objects, by number."""
        return [root, *self._rest]

    def leaves(self, root: Any) -> Sequence[Any] | None:
        """All leaves as they are now, by object, in a new list; None if the graph is not what it was."""
        stamped = [stamp() for stamp in self._stamps]
        nodes = self._led(root)
        contents = _contents(nodes)
        cells, plain = self._cells, self._plain
        if self._root_is_cell:
            cells, plain = [root, *cells], [root, *plain]
        if _classes(nodes) != self._types or list(map(type, cells)) != self._words.types:
            return None
        if list(map(len, self._lists)) != self._lengths:
            return None
        entries: list[Any] | None = None
        if self._brief is None or stamped != self._stamped:
            entries = self._entries(contents)
            if entries is None or not all(map(operator.is_, self._pick_fixed(entries), self._fixed)):
                return None
            if not self._words.hold(cells) or any(statics.key(value) != key for value, key in self._keyed):
                return None
            self._look_briefly(nodes, contents, stamped)
        elif not self._brief.holds(contents, self._lists):
            return None
        leaves = self._read(plain)
        if entries is not None:
            leaves = [*leaves, *self._pick_raw(entries)]
        # An object in the place of an array, or a tree: another structure.
        if list(map(type, leaves)) != self._leaf_types:
            return None
        return self._mix(root, entries, leaves) if self._mixed and entries is not None else leaves

    def _look_briefly(
        self, nodes: Sequence[tuple[Node, list[Any]]], contents: Sequence[dict[Any, Any]], stamped: list[Any]
    ) -> None:
        """Next time a short look is enough, if every node tells its changes, and cells hold all leaves."""
        self._brief = None
        if self._mixed or self._keyed or None in stamped:
            return
        if all(kind.tells(node) for kind, some in nodes for node in some):
            # In this order: another thread that sees the stamp sees the rest.
            self._brief, self._stamped = _Brief(contents, self._lists), stamped

    def _mix(self, root: Any, entries: Sequence[Any], leaves: list[Any]) -> Sequence[Any] | None:
        """Puts all leaves that do not stand in cells between those that do."""
        leaves += self._constant
        objects = self.objects(root)
        values = [(tree, [entries[tree.position]]) for tree in self._trees]
        values += [(tree, self._read([objects[tree.position]])) for tree in self._cell_trees]
        for tree, value in values:
            taken = tree.shape.take(value)
            if taken is None or not all(map(operator.is_, taken.objects, map(objects.__getitem__, tree.children))):
                return None
            leaves += taken.leaves
        return list(self._pick_leaves(leaves))


def _contents(nodes: Sequence[tuple[Node, list[Any]]]) -> list[dict[Any, Any]]:
    contents: list[Any] = []
    for kind, some in nodes:
        contents += map(kind.items, some)
    return contents


def _classes(nodes: Sequence[tuple[Node, list[Any]]]) -> list[type]:
    classes: list[type] = []
    for _, some in nodes:
        classes += map(type, some)
    return classes


def _nothing(*values: Any) -> None:
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
