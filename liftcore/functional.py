"""The functional API, on objects of every family: split, merge, state, update, clone, stack, unstack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from liftcore import filters
from liftcore.aliasing import Assignment
from liftcore.errors import FilterError, PathError
from liftcore.families import family_of
from liftcore.paths import Path, from_keys, like_jax, text
from liftcore.protocol import Call, Filter, Reference, Site, Spec
from liftcore.structure import Forest, Found, Part, assemble, build, fill, gradient_values, object_kind
from liftcore.walk import Walk

__all__ = ["State", "Structure", "clone", "merge", "pack", "split", "stack", "state", "unpack", "unstack", "update"]

T = TypeVar("T")


class State(Mapping[Any, Any]):
    """Arrays of an object by path: a nested mapping, and a pytree of plain arrays.

    Integer keys are also found as strings, since checkpoint formats turn them into strings. Keys are attributes too.

    Args:
      nested: mapping from keys to arrays or to further mappings.

    Example:
      >>> s = State({"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}})
      >>> s["dense"]["kernel"].shape, sorted(s.dense)
      ((2, 3), ['bias', 'kernel'])
    """

    __slots__ = ("_entries",)
    __eq__ = object.__eq__  # arrays have no one truth value; jax.tree.map(jnp.array_equal, a, b) compares
    __hash__ = object.__hash__

    def __init__(self, nested: Mapping[Any, Any] | None = None) -> None:
        entries = {key: State(value) if type(value) is dict else value for key, value in dict(nested or {}).items()}
        object.__setattr__(self, "_entries", entries)

    @classmethod
    def from_leaves(cls, leaves: Mapping[Path, Any]) -> State:
        """Builds a state from leaves by path."""
        nested: dict[Any, Any] = {}
        for path, leaf in leaves.items():
            level = nested
            for key in path[:-1]:
                level = level.setdefault(key, {})
            level[path[-1]] = leaf
        return cls(nested)

    def leaves(self) -> dict[Path, Any]:
        """All leaves by path."""
        return {from_keys(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(self)[0]}

    def __getitem__(self, key: Any) -> Any:
        if key in self._entries:
            return self._entries[key]
        for other in self._entries:
            if isinstance(other, int) != isinstance(key, int) and str(other) == str(key):
                return self._entries[other]
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"This State has no {name!r}; it has {', '.join(map(str, self)) or 'nothing'}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("A State is immutable; jax.tree.map makes a changed one")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"State({self._entries!r})"

    def __getstate__(self) -> dict[Any, Any]:
        return self._entries  # type: ignore[no-any-return]

    def __setstate__(self, entries: dict[Any, Any]) -> None:
        object.__setattr__(self, "_entries", entries)


def _state_children(tree: State) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    keys = tuple(like_jax(tree))
    return [(jax.tree_util.DictKey(key), tree._entries[key]) for key in keys], keys


def _state_from(keys: tuple[Any, ...], children: Iterable[Any]) -> State:
    new = State()
    object.__setattr__(new, "_entries", dict(zip(keys, children, strict=True)))
    return new


jax.tree_util.register_pytree_with_keys(State, _state_children, _state_from)


def _no_spec(spelling: Any, site: Site) -> Spec:
    return Spec(None, None)


def _sites(forest: Forest, attempted: str) -> list[Site]:
    """The site of every leaf, in order."""
    call = Call(attempted, "an object")
    assignment = Assignment(call, "in", _no_spec, forest.objects, forest.found.__getitem__)
    return [
        assignment.site(place, obj, leaf, key, owners)
        for place, obj, found in forest
        for leaf, key, owners in zip(found.leaves, found.part.region.leaf_keys, found.leaf_owners, strict=True)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """What remains of an object without its arrays; compares by value, and goes to `merge`.

    Attributes:
      key: the structure by value.
      root: part of the object itself.
      parts: part of each object with identity below it.
      paths: path of each leaf, in order.
    """

    key: Hashable
    root: Part = dataclasses.field(compare=False, repr=False)
    parts: tuple[Part, ...] = dataclasses.field(compare=False, repr=False)
    paths: tuple[Path, ...] = dataclasses.field(compare=False)


def _chosen(sites: Sequence[Site], wanted: Sequence[Filter], attempted: str) -> list[int]:
    """For each leaf, which filter takes it first."""
    compiled = [filters.compile_filter(one) for one in wanted] or [filters.compile_filter(True)]
    numbers = []
    for site in sites:
        number = filters.first(compiled, site)
        if number is None:
            raise FilterError(
                attempted,
                where=text("obj", site.path),
                found=[f"tags: {', '.join(sorted(site.tags)) or 'none'}", f"filters: {list(wanted)!r}"],
                why="No filter takes this leaf.",
                ways=["Add ... as the last filter, for all the rest."],
            )
        numbers.append(number)
    return numbers


def split(obj: Any, *wanted: Filter) -> tuple[Any, ...]:
    """Splits an object into its structure and one state for each filter.

    Args:
      obj: an object of any family, or a pytree of such.
      *wanted: filters; each leaf goes to the first that takes it. None at all: one state with everything.

    Returns:
      (structure, *states). A state is the family's container: `State` for own objects; a tree keeps its shape, with
      None in the place of what was not picked.

    Raises:
      FilterError: a leaf is taken by no filter.

    Example:
      >>> structure, arrays = split({"w": jnp.ones(2), "name": "a"})
      >>> merge(structure, arrays)["name"]
      'a'
    """
    forest = Walk("split of an object").forest({"obj": obj})
    sites = _sites(forest, "split")
    numbers = _chosen(sites, wanted, "split of an object")
    states = [
        pack(obj, {site.path: site.value for site, taken in zip(sites, numbers, strict=True) if taken == number})
        for number in range(max(1, len(wanted)))
    ]
    parts = tuple(found.part for found in forest.found)
    structure = Structure(forest.key(), forest.roots["obj"].part, parts, tuple(site.path for site in sites))
    return (structure, *states)


class _Given:
    """Leaves of some containers by path; or by its text, since checkpoint formats turn integer keys into strings."""

    def __init__(self, containers: Sequence[Any]) -> None:
        self._exact = {path: leaf for one in containers for path, leaf in unpack(one).items()}

    def matched(self, paths: Iterable[Path]) -> tuple[dict[Path, Any], list[Path]]:
        """The leaf for each of these paths that has one, and the paths that are left over."""
        wanted = list(paths)
        found = {path: self._exact[path] for path in wanted if path in self._exact}
        rest = {tuple(map(str, path)): path for path in self._exact if path not in found}
        for path in wanted:
            as_text = tuple(map(str, path))
            if path not in found and as_text in rest:
                found[path] = self._exact[rest.pop(as_text)]
        return found, list(rest.values())


def merge(structure: Structure, *states: Any) -> Any:
    """Builds a new object from a structure and states: the inverse of `split`.

    Args:
      structure: from `split`.
      *states: containers that together have every leaf.

    Returns:
      The object.

    Raises:
      PathError: a leaf is missing, or one is too many.
    """
    given, extra = _Given(states).matched(structure.paths)
    missing = [path for path in structure.paths if path not in given]
    if missing or extra:
        raise PathError(
            "merge of a structure",
            where=f"{len(missing)} leaves are missing, {len(extra)} too many",
            found=[f"missing: {text('obj', path)}" for path in missing[:5]]
            + [f"too many: {text('obj', path)}" for path in extra[:5]],
            ways=["Pass all states that split returned: merge(structure, *states)."],
        )
    built = build({"obj": structure.root}, structure.parts, [given[path] for path in structure.paths])
    return built.roots["obj"]


def state(obj: T, *wanted: Filter) -> Any:
    """The arrays of an object, or those that filters take: a container in which optax and `jax.tree.map` work.

    Args:
      obj: an object of any family, or a pytree of such.
      *wanted: filters; none: everything. Several give several states, and each leaf goes to the first that takes it.

    Returns:
      One container, or a tuple of them for several filters.

    Example:
      >>> state({"w": jnp.ones(2), "n": jnp.arange(3)}, "param")["n"] is None
      True
    """
    sites = _sites(Walk("state of an object").forest({"obj": obj}), "state")
    compiled = [filters.compile_filter(one) for one in wanted] or [filters.compile_filter(True)]
    numbers = [filters.first(compiled, site) for site in sites]
    states = tuple(
        pack(obj, {site.path: site.value for site, taken in zip(sites, numbers, strict=True) if taken == number})
        for number in range(len(compiled))
    )
    return states[0] if len(states) == 1 else states


def update(obj: T, *states: Any) -> T:
    """Puts arrays into an object.

    Args:
      obj: an object of any family, or a pytree of such.
      *states: containers, as from `state` or `grad`, maybe with other values; what they lack stays as it is.

    Returns:
      The object: the same one, updated, if it has identity; a new one if it is a tree.

    Raises:
      PathError: a state has a path that the object does not have; nothing is written then.
    """
    forest = Walk("update of an object").forest({"obj": obj})
    known = [place.path + key for place, _, found in forest for key in found.part.region.leaf_keys]
    given, extra = _Given(states).matched(known)
    if extra:
        raise PathError(
            f"update of a {type(obj).__name__}",
            where=text("obj", extra[0]),
            found=[f"the object has: {', '.join(text('obj', path) for path in known[:8])}"],
            why="The state has a path that the object does not have.",
            ways=["Take the state from an object of the same structure: lift.state(obj)."],
        )
    renewed: list[tuple[Any, Found, Sequence[Any]]] = []
    result: Any = obj
    for place, target, found in forest:
        paths = [place.path + key for key in found.part.region.leaf_keys]
        if not any(path in given for path in paths) and target is not None:
            continue
        leaves = [given.get(path, leaf) for path, leaf in zip(paths, found.leaves, strict=True)]
        entries = assemble(found.part, leaves, found.part.values, forest.objects)
        if target is None:
            (result,) = entries
        else:
            kind = object_kind(target)
            if isinstance(kind, Reference):
                kind.check_write(target)
            renewed.append((target, found, entries))
    for target, found, entries in renewed:
        fill(target, found.part, entries)
    return result  # type: ignore[no-any-return]


def clone(obj: T) -> T:
    """A copy of an object: new objects with the same sharing.

    Arrays are immutable, and both have the same ones: donating the one's arrays deletes the other's too, unless both
    are passed to the call that donates.
    """
    structure, arrays = split(obj)
    return merge(structure, arrays)  # type: ignore[no-any-return]


def stack(objs: Sequence[T]) -> T:
    """Stacks objects of one structure: each array gets a new leading axis, of length len(objs).

    Args:
      objs: at least one object.

    Returns:
      One object of the same structure.

    Raises:
      PathError: there is none, or structures or shapes differ.

    Example:
      >>> stack([{"w": jnp.zeros(2)}, {"w": jnp.ones(2)}])["w"].shape
      (2, 2)
    """
    pairs = [split(obj) for obj in objs]
    if not pairs:
        raise PathError("stack of no objects", why="A stack has at least one.")
    for index, (structure, _) in enumerate(pairs):
        if structure != pairs[0][0]:
            raise PathError(
                "stack of objects",
                where=f"objects 0 and {index} have different structures",
                found=[_difference(pairs[0][0], structure)],
                ways=["Build all of them by the same function."],
            )
    return merge(pairs[0][0], _tree_map(lambda *leaves: jnp.stack(leaves), *(arrays for _, arrays in pairs)))  # type: ignore[no-any-return]


def _tree_map(function: Callable[..., Any], *trees: Any) -> Any:
    try:
        return jax.tree.map(function, *trees)
    except (ValueError, TypeError) as error:
        raise PathError("stack of objects", where="their arrays do not fit", found=[str(error)]) from error


def _difference(one: Structure, other: Structure) -> str:
    mine, theirs = set(one.paths), set(other.paths)
    only = [text("obj", path) for path in sorted(mine ^ theirs, key=str)]
    return f"only one of them has {', '.join(only[:5])}" if only else "classes or static values differ"


def unstack(obj: T) -> list[T]:
    """Takes a stack apart: the inverse of `stack`.

    Raises:
      PathError: an array has no leading axis, or lengths differ.
    """
    structure, arrays = split(obj)
    shapes = {path: jnp.shape(leaf) for path, leaf in unpack(arrays).items()}
    lengths = {path: shape[0] if shape else None for path, shape in shapes.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise PathError(
            f"unstack of a {type(obj).__name__}",
            where="its arrays have no common leading axis",
            found=[f"{text('obj', path)}: {shape}" for path, shape in list(shapes.items())[:8]],
        )
    (length,) = set(lengths.values())
    assert length is not None
    return [merge(structure, jax.tree.map(lambda leaf, i=i: leaf[i], arrays)) for i in range(length)]


def pack(value: Any, leaves: Mapping[Path, Any]) -> Any:
    """Packs leaves by path into the container of states, gradients and tangents.

    Args:
      value: the object or pytree that the paths are of.
      leaves: any part of its leaves.

    Returns:
      Each family's container; a tree in its own shape, with containers in the places of objects and None elsewhere.
    """
    root = (walk := Walk("packing of leaves")).argument("obj", value).part
    containers: dict[int, Any] = {}
    shown: list[Any] = []
    for number, key in zip(root.region.children, root.region.child_keys, strict=True):
        if number in containers:
            shown.append(None)  # its container stands where it is first met
            continue
        obj, depth = walk.objects[number], len(key)
        family = family_of(type(obj))
        below = {path[depth:]: leaf for path, leaf in leaves.items() if path[:depth] == key}
        containers[number] = (family.pack if family is not None and family.pack is not None else _state)(obj, below)
        shown.append(containers[number])
    places = dataclasses.replace(root.region, children=tuple(range(len(shown))))
    return assemble(
        dataclasses.replace(root, region=places),
        [leaves.get(key) for key in root.region.leaf_keys],
        gradient_values(root),
        shown,
    )[0]


def _state(obj: Any, leaves: Mapping[Path, Any]) -> Any:
    """The container of an object with identity whose family has none of its own; a bare cell's is its value."""
    return leaves[()] if () in leaves else State.from_leaves(leaves)


def unpack(container: Any) -> dict[Path, Any]:
    """The inverse of `pack`: leaves by path; None is no leaf."""
    return {from_keys(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(container)[0]}
