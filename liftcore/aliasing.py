"""The alias validator: gives every leaf its spec, and refuses a shared object that would get two.

Each object gets its specs on the first way to it. Every other way is checked: once for each distinct prefix leaf, and
for a lift type that looks at paths, each way that goes through no object twice.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

from liftcore import prefixes
from liftcore.errors import AliasError, CaptureError
from liftcore.families import family_of
from liftcore.paths import Path, text
from liftcore.protocol import Call, LiftType, Reference, Site, Spec, inexact_is_param
from liftcore.structure import Found, Place, object_kind

__all__ = ["Assigned", "Assignment"]


# A filter that looks at paths is asked about every way to a shared object; there can be very many.
_MOST_WAYS = 50_000


@dataclasses.dataclass(frozen=True, slots=True)
class Assigned:
    """What an object got: place of the first way to it, the prefix leaf there, and key and spec of each leaf."""

    place: Place
    prefix: Any
    keys: tuple[Path, ...]
    specs: tuple[Spec, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Edge:
    number: int
    place: Place
    prefix: Any
    above: frozenset[int]  # objects on the way, from the argument down


class Assignment:
    """Specs of all leaves of one side of a lifted call.

    Args:
      call: for messages.
      side: "in" or "out".
      meaning: the transform's meaning of a spelling.
      objects: objects by number.
      found: `found(number)` takes one apart.
      captured: name of the hidden argument; an object below it may not be reached by another way.
      given: what objects got already, by number.
    """

    def __init__(
        self,
        call: Call,
        side: Literal["in", "out"],
        meaning: prefixes.Meaning,
        objects: Sequence[Any],
        found: Callable[[int], Found],
        captured: str | None = None,
        given: Mapping[int, Assigned] | None = None,
    ) -> None:
        self._call = call
        self._side = side
        self._meaning = meaning
        self._objects = objects
        self._found = found
        self._captured = captured
        self._edges: collections.deque[_Edge] = collections.deque()
        self._checked: set[tuple[Hashable, int]] = set()
        self._ways = 0
        self._compared = Spec.among_inputs if side == "in" else Spec.across
        self.assigned: dict[int, Assigned] = dict(given or {})

    def argument(self, name: str, prefix: Any, found: Found) -> tuple[Spec, ...]:
        """Specs of the leaves of an argument or output itself; what hangs in it is followed."""
        place = Place(name, ())
        specs = self._specs(place, None, prefix, found)
        self.hang(place, None, prefix, found)
        return specs

    def hang(self, place: Place, obj: Any, prefix: Any, found: Found) -> None:
        """Follows what hangs in one region."""
        self._follow(place, obj, prefix, found, frozenset())
        while self._edges:
            self._take(self._edges.popleft())

    def spec(
        self, place: Place, obj: Any, prefix: Any, value: Any, key: tuple[Any, ...] = (), owners: Any = ()
    ) -> Spec:
        """The spec of one leaf."""
        return prefixes.resolve(prefixes.at(prefix, key), self.site(place, obj, value, key, owners), self._meaning)

    def site(self, place: Place, obj: Any, value: Any, key: Path = (), owners: tuple[type, ...] = ()) -> Site:
        """The site of one leaf below an object or argument."""
        reference = obj if obj is not None and isinstance(object_kind(obj), Reference) else None
        around = place.owners + (() if obj is None or reference is not None else (type(obj),)) + owners
        fields = (self._call, self._side, place.root, place.path + key, value, reference, around)
        for owner in (type(obj),) if reference is not None else reversed(around):
            family = family_of(owner)
            if family is not None:
                return Site(*fields, family.tags(Site(*fields)))
        return Site(*fields, inexact_is_param(Site(*fields)))

    def _specs(self, place: Place, obj: Any, prefix: Any, found: Found) -> tuple[Spec, ...]:
        return tuple(
            self.spec(place, obj, prefix, leaf, key, owners)
            for leaf, key, owners in zip(found.leaves, found.part.region.leaf_keys, found.leaf_owners, strict=True)
        )

    def _follow(self, place: Place, obj: Any, prefix: Any, found: Found, above: frozenset[int]) -> None:
        region = found.part.region
        inside = place.owners if obj is None else (*place.owners, type(obj))
        for number, key, owners in zip(region.children, region.child_keys, found.child_owners, strict=True):
            below = Place(place.root, place.path + key, inside + owners)
            self._edges.append(_Edge(number, below, prefixes.at(prefix, key), above))

    def _take(self, edge: _Edge) -> None:
        obj, found, given = self._objects[edge.number], self._found(edge.number), self.assigned.get(edge.number)
        above = edge.above | {edge.number}
        if given is None:
            specs = self._specs(edge.place, obj, edge.prefix, found)
            self.assigned[edge.number] = Assigned(edge.place, edge.prefix, found.part.region.leaf_keys, specs)
            self._follow(edge.place, obj, edge.prefix, found, above)
            return
        if self._captured in (given.place.root, edge.place.root) and given.place.root != edge.place.root:
            raise self._captured_too(edge, obj, given)
        if self._is_known(edge, given):
            return
        # An object that came in may have other leaves now: what it had then must agree.
        firsts = dict(zip(given.keys, given.specs, strict=True))
        specs = self._specs(edge.place, obj, edge.prefix, found)
        for key, mine in zip(found.part.region.leaf_keys, specs, strict=True):
            first = firsts.get(key, mine)
            if self._compared(mine) != self._compared(first):
                raise self._conflict(edge, key, mine, given, first)
        self._follow(edge.place, obj, edge.prefix, found, above)

    def _is_known(self, edge: _Edge, given: Assigned) -> bool:
        """Whether this way to an object says what another one said; a way through an object twice is none."""
        asked = (_identity(edge.prefix), edge.number)
        if isinstance(edge.prefix, LiftType) and edge.prefix.by_path and self._ways < _MOST_WAYS:
            self._ways += 1
            return edge.number in edge.above
        if asked in self._checked or asked[0] == _identity(given.prefix):
            return True
        self._checked.add(asked)
        return False

    def _conflict(self, edge: _Edge, key: Path, mine: Spec, given: Assigned, first: Spec) -> AliasError:
        one = text(given.place.root, given.place.path + key)
        other = text(edge.place.root, edge.place.path + key)
        return AliasError(
            str(self._call),
            where=f"{one} and {other} are one {type(self._objects[edge.number]).__name__}",
            found=[f"{one}: {first}", f"{other}: {mine}"],
            why="A shared object has one value, so that every way to it must say the same.",
            ways=[
                f"Give {edge.place.root} and {given.place.root} the same prefix.",
                "Pass a copy in one of the places: lift.clone(obj).",
            ],
        )

    def _captured_too(self, edge: _Edge, obj: Any, given: Assigned) -> CaptureError:
        there = str(edge.place) if given.place.root == self._captured else str(given.place)
        return CaptureError(
            str(self._call),
            where=f"{there} is a captured {type(obj).__name__}",
            found=["the function closes over it", f"it is also {there}"],
            why="A captured reference may be read; it may not be returned, nor passed as well.",
            ways=["Pass the object that holds it as an argument, and use the argument inside."],
        )


def _identity(leaf: Any) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return (type(leaf), leaf)
