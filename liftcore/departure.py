"""What leaves a lifted call, and how the caller's objects are brought up to date with it.

Inside, `depart` compares every object with what came in and puts into the out buckets what changed, what the transform
always returns, and the result. It describes the rest in a `Departure`: static, without a tracer, in terms of the
input's numbers. Outside, `merge` runs that description on the caller's objects; nothing is written before all of it
is built.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator
import re
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import captures, prefixes
from liftcore.aliasing import Assigned, Assignment
from liftcore.buckets import Bucket, Layout, Pick, picker
from liftcore.contents import ATOMS
from liftcore.errors import CaptureError, CarryError, PrefixError, StructureError, WriteError
from liftcore.families import kind_of
from liftcore.paths import Path, text
from liftcore.protocol import EMPTY, Arguments, Call, LiftSpec, Node, Reference, Site, Spec
from liftcore.structure import Assembly, Built, Code, Found, Op, Part, Place, Region, fill, make_empty, object_kind
from liftcore.walk import Walk

__all__ = ["Arrival", "Departure", "depart", "merge"]

_UNFILLED = object()

# So many trees in a result are worth a treedef.
_MANY = 4
_CHANGEABLE = (set, bytearray, collections.deque, types.SimpleNamespace)
_FLAT = (Op.LEAF, Op.OBJECT, Op.STATIC)
_CONSTANTS = (np.ndarray, np.generic, int, float, complex)


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """The input side of a program: structure and specs, shared by all calls that it serves.

    Attributes:
      call: for messages.
      roots: part of each argument, by name.
      parts: part of each object, by number.
      assigned: place, prefix and specs of each object.
      root_specs: specs of each argument's own leaves.
      captured: name of the hidden argument.
      slots: for each leaf that leaves in the place where it entered: (bucket, position).
      layouts: layout of each bucket that came in.
      outs: keys of the out buckets, in order.
    """

    call: Call
    roots: Mapping[str, Part]
    parts: Sequence[Part]
    assigned: Mapping[int, Assigned]
    root_specs: Mapping[str, tuple[Spec, ...]]
    captured: str
    slots: Mapping[int, tuple[Hashable, int]]
    layouts: Mapping[Hashable, Layout]
    outs: tuple[Hashable, ...]

    def paths(self) -> Iterator[tuple[str, Path]]:
        """Argument and path of each leaf, by number."""
        for name, part in self.roots.items():
            for key in part.region.leaf_keys:
                yield name, key
        for number, part in enumerate(self.parts):
            place = self.assigned[number].place
            for key in part.region.leaf_keys:
                yield place.root, place.path + key

    def starts(self) -> tuple[dict[str, int], list[int]]:
        """Number of the first leaf of each argument, and of each object."""
        count = 0
        names: dict[str, int] = {}
        for name, part in self.roots.items():
            names[name] = count
            count += len(part.region.leaf_keys)
        objects: list[int] = []
        for part in self.parts:
            objects.append(count)
            count += len(part.region.leaf_keys)
        return names, objects


@dataclasses.dataclass(frozen=True, slots=True)
class _Out:
    """A leaf that left: its out bucket, its position there, and the spec that brings it outside."""

    bucket: int
    position: int
    spec: Spec


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """A leaf or static value of the input, by number."""

    number: int


class _Recipe:
    """How to make one region outside.

    Args:
      part: the program.
      leaves: where its leaves come from.
      values: its static values and rebuilders.
    """

    __slots__ = ("_bucket", "_leaves", "_make", "_pick", "_renewed", "_values", "part")

    def __init__(self, part: Part, leaves: Sequence[_Out | _Kept], values: Sequence[Any]) -> None:
        self.part = part
        self._leaves = tuple(leaves)
        self._values = tuple(values)
        # Every caller gets its own: what came in, and a copy of what can be changed in place.
        self._renewed = [
            index for index, value in enumerate(values) if isinstance(value, _Kept) or type(value) in _CHANGEABLE
        ]
        # Made when it is first used: of most cells only the source is asked.
        self._make: Callable[..., list[Any]] | None = None
        # Most leaves come from one bucket, as they are.
        self._bucket: int | None = None
        plain = [leaf for leaf in leaves if isinstance(leaf, _Out) and type(leaf.spec).exit is Spec.exit]
        if len(plain) == len(leaves) and len({leaf.bucket for leaf in plain}) == 1:
            self._bucket = plain[0].bucket
            self._pick = picker([leaf.position for leaf in plain])

    def source(self) -> _Out | None:
        """Where its one leaf comes from, if it has one that comes out as it is."""
        (leaf,) = self._leaves if len(self._leaves) == 1 else (None,)
        return leaf if self._bucket is not None and isinstance(leaf, _Out) else None

    def entries(self, given: _Given) -> list[Any]:
        """Makes the entries at the region's top."""
        if self._bucket is not None:
            leaves = _arrays(self._pick(given.buckets[self._bucket].leaves))
        else:
            leaves = [self._outside(leaf, given) for leaf in self._leaves]
        if self._make is None:
            self._make = self._maker()
        if not self._renewed:
            return self._make(leaves, self._values, given.objects)
        values = list(self._values)
        for index in self._renewed:
            one = values[index]
            values[index] = given.value(one.number) if isinstance(one, _Kept) else copy.copy(one)
        return self._make(leaves, values, given.objects)

    def _maker(self) -> Callable[..., list[Any]]:
        if self.part.region.is_leaf():
            return _the_leaf
        assembly = Assembly(self.part.region)
        return _ByJax(assembly, self.part.region) if _is_of_jax(self.part, self._values) else assembly

    def _outside(self, source: _Out | _Kept, given: _Given) -> Any:
        if isinstance(source, _Kept):
            return given.leaf(source.number)
        (value,) = _arrays([given.buckets[source.bucket].leaves[source.position]])
        return source.spec.exit(value, given.call)


def _the_leaf(leaves: Sequence[Any], values: Sequence[Any], objects: Sequence[Any]) -> list[Any]:
    return list(leaves)


class _ByJax:
    """Makes a tree by JAX's own treedef, which is faster, once it was made twice."""

    __slots__ = ("_assembly", "_calls", "_known", "_ops")

    def __init__(self, assembly: Assembly, region: Region) -> None:
        self._assembly, self._ops = assembly, region.kinds_of_values()
        self._known: tuple[Pick, Any] | None = None
        self._calls = 0

    def __call__(self, leaves: Sequence[Any], values: Sequence[Any], objects: Sequence[Any]) -> list[Any]:
        """Makes it: see `Assembly`."""
        self._calls += 1
        # What is made once, as by a transform that traces at each call, is not worth it.
        if self._calls == 2:
            self._known = self._learned(len(leaves), values, objects)
        if self._known is None:
            return self._assembly(leaves, values, objects)
        pick, treedef = self._known
        result: list[Any] = treedef.unflatten(pick([*leaves, *values]))
        return result

    def _learned(self, count: int, values: Sequence[Any], objects: Sequence[Any]) -> tuple[Pick, Any] | None:
        """Where JAX's leaves stand among leaves and values, found by numbers in their places, and the treedef."""
        static = [
            _Kept(count + index) if op is Op.STATIC and value is not None else value
            for index, (op, value) in enumerate(zip(self._ops, values, strict=True))
        ]
        order, treedef = jax.tree_util.tree_flatten(self._assembly(list(map(_Kept, range(count))), static, objects))
        if not all(isinstance(number, _Kept) for number in order):
            return None
        return picker([number.number for number in order]), treedef


def _is_of_jax(part: Part, values: Sequence[Any]) -> bool:
    """Whether JAX can make a region's tree anew from its leaves, and would make the same for every caller."""
    region, ops = part.region, part.region.kinds_of_values()
    if part.cls is not None or region.children or ops.count(Op.TREE) < _MANY:
        return False
    return all(
        not isinstance(value, (Code, _Kept) if op in (Op.TREE, Op.KEPT) else Code) and type(value) not in _CHANGEABLE
        for op, value in zip(ops, values, strict=True)
    )


@dataclasses.dataclass(slots=True)
class _Given:
    """What there is outside to make regions from: see `merge`."""

    call: Call
    buckets: Sequence[Bucket]
    objects: Sequence[Any]
    leaf: Callable[[int], Any]
    value: Callable[[int], Any]


def _arrays(values: Sequence[Any]) -> Sequence[Any]:
    # Some transforms hand out constants as Python numbers and NumPy arrays; the caller gets arrays.
    if any(issubclass(cls, _CONSTANTS) for cls in set(map(type, values))):
        return list(map(_array, values))
    return values


def _array(value: Any) -> Any:
    if isinstance(value, _CONSTANTS) and getattr(value, "dtype", None) != jax.dtypes.float0:
        return jnp.asarray(value)
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class _Values:
    """New values of plain cells, which come from one bucket: cells that hold one array, and keep their metadata.

    Attributes:
      kind: what the cells are.
      cells: picks them from all objects.
      bucket: the bucket's index.
      values: picks the values from it.
    """

    kind: Reference
    cells: Pick
    bucket: int
    values: Pick


@dataclasses.dataclass(frozen=True, slots=True)
class Departure:
    """What left a call, without the arrays.

    Attributes:
      values: new values of cells of which nothing else changed.
      changed: recipe of each other input object that changed, by number.
      made: recipes of new objects, numbered after the input's.
      replaced: recipe of each argument that a returned value replaces.
      result: recipe of the output.
      numbers: attributes that are static numbers and changed, as text.
      concerns_objects: whether any of it is about the caller's objects, or new ones.
    """

    values: tuple[_Values, ...]
    changed: Mapping[int, _Recipe]
    made: tuple[_Recipe, ...]
    replaced: Mapping[str, _Recipe]
    result: _Recipe
    numbers: tuple[str, ...]
    concerns_objects: bool


class _Outputs:
    """The out buckets while they are filled."""

    def __init__(self, arrival: Arrival, before: Sequence[Any]) -> None:
        self._arrival = arrival
        self._before = before
        self._index = {key: index for index, key in enumerate(arrival.outs)}
        self._names: list[list[str]] = [[] for _ in arrival.outs]
        self._leaves: list[list[Any]] = [[] for _ in arrival.outs]
        self._placed = {bucket for bucket, _ in arrival.slots.values()}
        for key in self._placed:
            size = len(arrival.layouts[key].names)
            self._leaves[self._index[key]] = [_UNFILLED] * size

    def put(self, value: Any, spec: Spec, where: str, number: int | None) -> _Out:
        """Puts one leaf into its bucket; `number` is the input leaf in whose place it stands, if any."""
        value = spec.depart(value, self._arrival.call)
        if spec.bucket_out not in self._index:
            raise PrefixError(
                str(self._arrival.call),
                where=where,
                found=[f"its spec is {spec}, which nothing announced before the call"],
                why="JAX is told the prefix of the output before there is one.",
                ways=["Choose by filter: lift.StateAxes({...}), which says all that it can give."],
            )
        index = self._index[spec.bucket_out]
        slot = None if number is None else self._arrival.slots.get(number)
        if slot is None:
            if spec.bucket_out in self._placed:
                raise CarryError(
                    str(self._arrival.call),
                    where=where,
                    found=["it was not there when the call began"],
                    why="A loop's carry has the same structure after each step.",
                    ways=["Create it before the loop."],
                )
            self._names[index].append(where)
            self._leaves[index].append(value)
            return _Out(index, len(self._leaves[index]) - 1, spec)
        assert number is not None
        self._check_type(self._before[number], value, where)
        self._leaves[index][slot[1]] = value
        return _Out(index, slot[1], spec)

    def _check_type(self, before: Any, after: Any, where: str) -> None:
        old, new = jnp.result_type(before), jnp.result_type(after)
        # A weak type takes the other's dtype, as JAX promotes a loop's carry.
        weak = getattr(before, "weak_type", not hasattr(before, "dtype"))
        if jnp.shape(before) == jnp.shape(after) and (old == new or weak):
            return
        raise CarryError(
            str(self._arrival.call),
            where=where,
            found=[f"comes in as {old}{list(jnp.shape(before))}", f"leaves as {new}{list(jnp.shape(after))}"],
            why="What one step hands to the next has one shape and one dtype.",
            ways=[
                f"Convert it in the function: value.astype(jnp.{old}).",
                "Start the loop with the type that it has later.",
            ],
        )

    def buckets(self) -> tuple[Bucket, ...]:
        """The filled buckets, in the order of the program's `outs`."""
        for number, (key, position) in self._arrival.slots.items():
            leaves = self._leaves[self._index[key]]
            if leaves[position] is _UNFILLED:  # of a tree that nothing replaces: it is what it was
                leaves[position] = self._before[number]
        return tuple(
            Bucket(
                tuple(self._leaves[index]),
                self._arrival.layouts[key] if key in self._placed else Layout.of(self._names[index]),
            )
            for index, key in enumerate(self._arrival.outs)
        )


def _mismatch(call: Call, where: str, was: str, now: str) -> CarryError:
    return CarryError(
        str(call),
        where=where,
        found=[f"comes in: {was}", f"leaves: {now}"],
        why="What one step of a loop hands to the next has one structure.",
        ways=["Return an object of the same structure in that place; change structure before or after the loop."],
    )


def _describe(part: Part) -> str:
    name = part.cls.__name__ if part.cls else "value"
    keys = [text("", key).lstrip(".") for key in (*part.region.leaf_keys, *part.region.child_keys)]
    return f"{name} with {', '.join(keys)}" if any(keys) else name


def _sides(before: Part, now: Part) -> tuple[str, str]:
    """Both sides of a change, as text; where they have the same parts, with the values that differ."""
    was, is_now = _describe(before), _describe(now)
    if was != is_now:
        return was, is_now
    if before.metadata != now.metadata:
        return f"{was}, metadata {dict(before.metadata or {})}", f"{is_now}, metadata {dict(now.metadata or {})}"
    if before.keys is None or now.keys is None:
        return f"{was}, a value of one structure", f"{is_now}, a value of another"
    olds, news = before.named_ops(), now.named_ops()
    changed = [key for key in {**olds, **news} if olds.get(key) != news.get(key)]
    if not changed:
        return f"{was}, one order or set of objects", f"{is_now}, another one"
    one = ", ".join(f"{key}={_plain(olds.get(key))}" for key in changed)
    other = ", ".join(f"{key}={_plain(news.get(key))}" for key in changed)
    return f"{was}, {one}", f"{is_now}, {other}"


def _plain(op: Any) -> str:
    """A static value that an instruction names, if it is an atom."""
    key = op[1] if op is not None and len(op) == 2 else None
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], (bool, int, float)):
        return repr(key[1])
    return repr(key) if isinstance(key, str) else "..."


def _bind_slots(arrival: Arrival, objects: Sequence[Any], replaced: Mapping[str, Any]) -> list[Any]:
    """Finds which object now stands in the place of each one that came in: identity in a carry is by place."""
    bound: dict[int, Any] = {}
    taken: dict[int, int] = {}
    for name, value in replaced.items():
        walk = Walk(str(arrival.call))
        forest = walk.forest({name: value})
        pending = [(name, arrival.roots[name], forest.roots[name].part)]
        while pending:
            where, was, now = pending.pop()
            before, after = was.region, now.region
            if before.header != after.header or before.ops != after.ops:
                raise _mismatch(arrival.call, where, *_sides(was, now))
            for old, new in zip(before.children, after.children, strict=True):
                obj = forest.objects[new]
                place = arrival.assigned[old].place
                twin = taken.get(id(obj), old)
                if twin != old:
                    other = arrival.assigned[twin].place
                    raise _mismatch(arrival.call, f"{place} and {other}", "two objects", "one object in both places")
                if bound.get(old, obj) is not obj:
                    raise _mismatch(arrival.call, str(place), "one object, shared with another place", "two objects")
                if old not in bound:
                    bound[old] = obj
                    taken[id(obj)] = old
                    pending.append((str(place), arrival.parts[old], forest.found[new].part))
    return [bound.get(number, obj) for number, obj in enumerate(objects)]


def depart(
    arrival: Arrival,
    spec: LiftSpec,
    passed: Arguments,
    inside: Built,
    parts: Sequence[Part],
    leaves: Sequence[Any],
    values: Sequence[Any],
    out: Any,
) -> tuple[tuple[Bucket, ...], Departure]:
    """Collects what leaves one call of the user's function. Runs inside the trace.

    Args:
      arrival: the input side.
      spec: the transform.
      passed: how the arguments were passed.
      inside: what was built inside: the arguments and objects that the function got.
      parts: part of each object, by number, with its values.
      leaves: the inner leaves, by number, as the function got them.
      values: the static values that the inner arguments were built with, by number.
      out: what the function returned.

    Returns:
      The out buckets and the description of what they are.

    Raises:
      AliasError: a shared object leaves under two specs.
      CarryError: a loop's carry changed its structure or type.
      CaptureError: a captured object was written or returned.
      WriteError: something was written that may not be.
      StructureError: a change of structure cannot be carried out.
    """
    replaced, out = spec.tie(passed, inside.roots, out)
    return _Departing(arrival, spec, inside, parts, leaves, values).run(replaced, out)


class _Departing:
    """One run of `depart`."""

    def __init__(
        self,
        arrival: Arrival,
        spec: LiftSpec,
        inside: Built,
        parts: Sequence[Part],
        leaves: Sequence[Any],
        values: Sequence[Any],
    ) -> None:
        self.arrival, self.spec = arrival, spec
        self.objects, self.leaves = inside.objects, leaves
        self.entries, self.parts = inside.entries, parts
        # Atoms are the same in every model; what the function captures is the same in every call.
        hidden = _hidden(arrival)
        self.values = {
            id(value): number
            for number, value in enumerate(values)
            if number not in hidden and type(value) not in ATOMS and not isinstance(value, type)
        }
        self.outputs = _Outputs(arrival, leaves)
        self.root_starts, self.object_starts = arrival.starts()
        self.numbers: list[str] = []

    def run(self, replaced: Mapping[str, Any], out: Any) -> tuple[tuple[Bucket, ...], Departure]:
        """See `depart`."""
        arrival, count = self.arrival, len(self.objects)
        slots = _bind_slots(arrival, self.objects, replaced) if replaced else self.objects
        places = [arrival.assigned[number].place for number in range(count)]
        walk = Walk(str(arrival.call), slots, places, leaving=True)
        found = [self._untouched(slots[number], number) or walk.content(number) for number in range(count)]
        tops = {name: walk.argument(name, value) for name, value in replaced.items()}
        result = walk.argument("return", out)
        walk.follow(found)
        assignment = Assignment(
            arrival.call,
            "out",
            self.spec.spec,
            walk.objects,
            found.__getitem__,
            arrival.captured,
            arrival.assigned,
        )
        changed = self._changed(assignment, walk.objects, found[:count])
        renewed = {name: self._replaced(name, top) for name, top in tops.items()}
        prefixes.check_fits(self.spec.outs, out, arrival.call, "return")
        specs = assignment.argument("return", self.spec.outs, result)
        for number in range(count, len(found)):
            self._check_own(walk.objects[number], assignment.assigned[number].place)
        final = self._recipe(result, Place("return", ()), specs)
        made = tuple(
            self._recipe(found[number], assignment.assigned[number].place, assignment.assigned[number].specs)
            for number in range(count, len(found))
        )
        plain, others = _gathered(arrival, changed)
        concerned = bool(changed or made) or any(recipe.part.region.children for recipe in (final, *renewed.values()))
        departure = Departure(plain, others, made, renewed, final, tuple(self.numbers), concerned)
        return self.outputs.buckets(), departure

    def _untouched(self, obj: Any, number: int) -> Found | None:
        """What `Walk.content` would find, at a glance: of a plain object that still holds what it was filled with."""
        part, entries, kind = self.parts[number], self.entries[number], object_kind(obj)
        region = part.region
        if obj is not self.objects[number] or type(obj) is not part.cls:
            return None
        if isinstance(kind, Reference):
            if not region.is_leaf() or kind.read(obj) is not entries[0] or part.metadata or kind.metadata(obj):
                return None
        else:
            assert kind is not None, "only objects with identity are numbered"
            items = kind.items(obj)
            if len(items) != len(entries) or not all(map(operator.is_, items.values(), entries)):
                return None
            if tuple(items) != part.keys or not _is_flat(part) or kind.static(obj):
                return None
        start, count = self.object_starts[number], len(region.leaf_keys)
        return Found(part, list(self.leaves[start : start + count]), [()] * count, [()] * len(region.children))

    def _changed(self, assignment: Assignment, objects: Sequence[Any], found: Sequence[Found]) -> dict[int, _Recipe]:
        changed: dict[int, _Recipe] = {}
        for number, now in enumerate(found):
            before, given = self.arrival.parts[number], self.arrival.assigned[number]
            start = self.object_starts[number]
            restructured = now.part.region != before.region
            mine = self.leaves[start : start + len(given.specs)]
            same = not restructured and all(map(operator.is_, now.leaves, mine))
            if same and not any(spec.carried for spec in given.specs):
                continue
            olds = (
                {key: index for index, key in enumerate(before.region.leaf_keys)}
                if restructured
                else dict(zip(now.part.region.leaf_keys, range(len(now.leaves)), strict=True))
            )
            rewritten = [
                index is None or leaf is not self.leaves[start + index]
                for leaf, index in zip(now.leaves, map(olds.get, now.part.region.leaf_keys), strict=True)
            ]
            if not same:
                self._check_captured(objects[number], given.place)
            if restructured:
                self._check_restructured(assignment, number, objects[number], before, now)
                assignment.hang(given.place, objects[number], given.prefix, now)
                self._note_numbers(given.place, objects[number], before, now.part)
            sources: list[_Out | _Kept] = []
            for leaf, key, owners, fresh in zip(
                now.leaves, now.part.region.leaf_keys, now.leaf_owners, rewritten, strict=True
            ):
                index = olds.get(key)
                spec = (
                    given.specs[index]
                    if index is not None
                    else assignment.spec(given.place, objects[number], given.prefix, leaf, key, owners)
                )
                site = assignment.site(given.place, objects[number], leaf, key, owners)
                if fresh:
                    self._check_write(spec, site)
                if fresh or spec.carried:
                    where = text(site.root, site.path)
                    sources.append(self.outputs.put(leaf, spec, where, None if index is None else start + index))
                else:
                    assert index is not None
                    sources.append(_Kept(start + index))
            changed[number] = _Recipe(now.part.bare(), tuple(sources), self._values(now.part))
        return changed

    def _replaced(self, name: str, top: Found) -> _Recipe:
        before, start = self.arrival.roots[name], self.root_starts[name]
        assert top.part.region == before.region, "slots were bound by this region"
        sources = tuple(
            self.outputs.put(leaf, spec, text(name, key), start + index)
            for index, (leaf, key, spec) in enumerate(
                zip(top.leaves, top.part.region.leaf_keys, self.arrival.root_specs[name], strict=True)
            )
        )
        return _Recipe(top.part.bare(), sources, self._values(top.part))

    def _recipe(self, found: Found, place: Place, specs: Sequence[Spec]) -> _Recipe:
        sources = tuple(
            self.outputs.put(leaf, spec, text(place.root, place.path + key), None)
            for leaf, key, spec in zip(found.leaves, found.part.region.leaf_keys, specs, strict=True)
        )
        return _Recipe(found.part.bare(), sources, self._values(found.part))

    def _values(self, part: Part) -> tuple[Any, ...]:
        # The caller's own static values are named by number, so that one model's config never lands in another.
        return tuple(_Kept(self.values[id(value)]) if id(value) in self.values else value for value in part.values)

    def _check_captured(self, obj: Any, place: Place) -> None:
        if place.root != self.arrival.captured:
            return
        name = str(place)
        holder = re.split(r"[.\[]", name)[0]
        raise CaptureError(
            str(self.arrival.call),
            where=f"{name}, a captured {type(obj).__name__}, was written",
            why="A captured reference may be read, not written: nothing carries the new value out.",
            ways=[
                f"Pass the object that holds it as an argument: lift.{self.arrival.call.transform}(f)({holder}, ...)."
            ],
        )

    def _note_numbers(self, place: Place, obj: Any, before: Part, now: Part) -> None:
        kind = object_kind(obj)
        if isinstance(kind, Node):
            olds, news, items = before.named_ops(), now.named_ops(), kind.items(obj)
            self.numbers += [
                text(place.root, (*place.path, key))
                for key, op in news.items()
                if op != olds.get(key, op) and type(items.get(key)) in (int, float)
            ]

    def _check_own(self, obj: Any, place: Place) -> None:
        """Refuses a captured cell among what leaves, where the family's cells tell in which call they were made."""
        kind = object_kind(obj)
        if not isinstance(kind, Reference) or kind.born is None or kind.born(obj) is captures.token():
            return
        raise CaptureError(
            str(self.arrival.call),
            where=f"{place} is a captured {type(obj).__name__}",
            why="A captured reference may be read; it may not be returned, nor hung on another object.",
            ways=[f"Pass the object that holds it as an argument: lift.{self.arrival.call.transform}(f)(obj, ...)."],
        )

    def _check_write(self, spec: Spec, site: Site) -> None:
        if spec.readonly is not None:
            cell = "" if site.reference is None else f", a {type(site.reference).__name__},"
            raise WriteError(
                str(self.arrival.call),
                where=f"{text(site.root, site.path)}{cell} was written",
                why=spec.readonly,
            )
        spec.written(site)

    def _check_restructured(self, assignment: Assignment, number: int, obj: Any, before: Part, now: Found) -> None:
        given, call = self.arrival.assigned[number], self.arrival.call
        if any(spec.carried and spec.bucket_in == spec.bucket_out for spec in given.specs):
            raise _mismatch(call, str(given.place), *_sides(before, now.part))
        if isinstance(object_kind(obj), Reference):
            for spec in given.specs:
                self._check_write(spec, assignment.site(given.place, obj, None))
            return
        # What no leaf tells (a static value, an attribute removed) is judged by what the object itself would get.
        site = assignment.site(given.place, obj, None)
        loops = bool(self.arrival.slots)
        try:
            spec = prefixes.resolve(given.prefix, site, self.spec.spec)
            carried = spec.carried and spec.bucket_in == spec.bucket_out
        except Exception:  # no filter is about the object itself, or one asks for a leaf
            spec, carried = Spec(None, None), loops
        if carried:
            raise _mismatch(call, str(given.place), *_sides(before, now.part))
        if spec.readonly is not None:
            raise StructureError(
                str(call),
                where=f"{given.place}, a {type(obj).__name__}, changed its structure",
                found=[
                    f"before: {_sides(before, now.part)[0]}",
                    f"after: {_sides(before, now.part)[1]}",
                ],
                why=spec.readonly,
            )


def _is_flat(part: Part) -> bool:
    """Whether leaves, objects and atoms hang in an object, under names, and nothing that could change unseen."""
    return (
        part.cls is not dict
        and all(op[0] in _FLAT for op in part.region.ops)
        and all(type(value) in ATOMS for value in part.values)
    )


def _hidden(arrival: Arrival) -> range:
    """Numbers of the static values that stand in the hidden argument."""
    start = 0
    for name, part in arrival.roots.items():
        count = len(part.region.kinds_of_values())
        if name == arrival.captured:
            return range(start, start + count)
        start += count
    return range(0)


def _gathered(arrival: Arrival, changed: Mapping[int, _Recipe]) -> tuple[tuple[_Values, ...], dict[int, _Recipe]]:
    """Puts together cells that only get another array, bucket by bucket; the rest stays as it is."""
    together: dict[tuple[int, int], tuple[Reference, int, list[int], list[int]]] = {}
    others: dict[int, _Recipe] = {}
    for number, recipe in changed.items():
        before = arrival.parts[number]
        kind = None if before.cls is None else kind_of(before.cls)
        source = recipe.source()
        if (
            isinstance(kind, Reference)
            and source is not None
            and recipe.part.region == before.region
            and before.region.is_leaf()
        ):
            _, _, cells, values = together.setdefault((id(kind), source.bucket), (kind, source.bucket, [], []))
            cells.append(number)
            values.append(source.position)
        else:
            others[number] = recipe
    groups = (
        _Values(kind, picker(cells, len(arrival.parts)), bucket, picker(values))
        for kind, bucket, cells, values in together.values()
    )
    return tuple(groups), others


def merge(
    departure: Departure,
    arrival: Arrival,
    buckets: Sequence[Bucket],
    objects: Callable[[], Sequence[Any]],
    leaf: Callable[[int], Any],
    value: Callable[[int], Any],
    *,
    write: bool = True,
    checked: bool = False,
) -> tuple[dict[str, Any], Any]:
    """Brings the caller's objects up to date and builds the output. Runs outside.

    Everything is built first; then the objects are written. With `write=False` they stay as they are.

    Args:
      departure: what left.
      arrival: the input side.
      buckets: the out buckets, from JAX.
      objects: gives the caller's objects, by number.
      leaf: gives the caller's leaf with a number.
      value: gives the caller's static value with a number.
      write: whether to write.
      checked: whether it is known that all objects may be written here.

    Returns:
      The replaced arguments by name, and the output.
    """
    if not departure.concerns_objects and not departure.replaced:
        return {}, departure.result.entries(_Given(arrival.call, buckets, (), leaf, value))[0]
    everything = objects() if departure.concerns_objects else ()
    made = [make_empty(recipe.part) for recipe in departure.made]
    given = _Given(arrival.call, buckets, [*everything, *made] if made else everything, leaf, value)
    for recipe, obj in zip(departure.made, made, strict=True):
        fill(obj, recipe.part, recipe.entries(given))
    renewed = {number: recipe.entries(given) for number, recipe in departure.changed.items()}
    replaced = {name: recipe.entries(given)[0] for name, recipe in departure.replaced.items()}
    (result,) = departure.result.entries(given)
    if write and (renewed or departure.values):
        _write(departure, arrival, buckets, everything, renewed, checked)
    return replaced, result


def _write(
    departure: Departure,
    arrival: Arrival,
    buckets: Sequence[Bucket],
    objects: Sequence[Any],
    renewed: Mapping[int, list[Any]],
    checked: bool,
) -> None:
    plain: list[tuple[Reference, Sequence[Any], Sequence[Any]]] = []
    for group in departure.values:
        cells, values = group.cells(objects), group.values(buckets[group.bucket].leaves)
        values = _arrays(values)
        if not checked:
            olds = map(group.kind.read, cells)
            others = [index for index, (old, value) in enumerate(zip(olds, values, strict=True)) if old is not value]
            cells, values = picker(others)(cells), picker(others)(values)
            for cell in cells:
                group.kind.check_write(cell)
        plain.append((group.kind, cells, values))
    writes: list[tuple[Any, Part, list[Any]]] = []
    described: list[tuple[Any, Reference, Mapping[str, Any]]] = []
    for number, contents in renewed.items():
        obj, part = objects[number], departure.changed[number].part
        kind = object_kind(obj)
        if isinstance(kind, Reference):
            other_words = part.region.header != arrival.parts[number].region.header
            if kind.read(obj) is contents[0] and not other_words:
                continue
            if not checked:
                kind.check_write(obj)
            if other_words:
                described.append((obj, kind, part.metadata or EMPTY))
        writes.append((obj, part, contents))
    for kind, cells, values in plain:
        collections.deque(map(kind.write, cells, values), maxlen=0)
    for obj, kind, metadata in described:
        kind.set_metadata(obj, metadata)
    for obj, part, contents in writes:
        fill(obj, part, contents)
