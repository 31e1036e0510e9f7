"""Filters: what picks leaves, in the same words for every model family.

A filter is `...` or True (every leaf), None or False (no leaf), a tag, a type, `In(Type)`, `PathContains(key)`, a
callable of (leaf) or of (path, leaf), a tree of filters in the shape of the object, `Any`, `All`, `Not`, or a
sequence of filters (any of them). `compile_filter` turns one into a predicate of a `Site`.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
import weakref
from collections.abc import Callable, Hashable, Iterable
from types import FunctionType

import jax
import numpy as np

from liftcore import paths
from liftcore.errors import FilterError
from liftcore.families import adapted
from liftcore.protocol import Filter, Site

__all__ = ["All", "Any", "Compiled", "In", "Not", "PathContains", "compile_filter", "first", "text"]

_ACCEPTED = (
    "Use ... (every leaf), None (no leaf), a tag such as 'param', a type, In(Type), PathContains('key'), "
    "lambda leaf: bool, lambda path, leaf: bool, a tree of bools, Any(...), All(...), Not(...) or a list of filters."
)


@dataclasses.dataclass(frozen=True, repr=False)
class In:
    """Matches leaves below an object of a type, however deep.

    Args:
      owner: the type of the enclosing object.

    Raises:
      FilterError: that is no type.

    Example:
      >>> In(dict)
      In(dict)
    """

    owner: type

    def __post_init__(self) -> None:
        if not isinstance(self.owner, type):
            raise FilterError(
                repr(self),
                why="In takes the type of an enclosing object.",
                ways=["Write In(Type) for a type, or PathContains('key') for a key of the path."],
            )

    def __repr__(self) -> str:
        return f"In({text(self.owner)})"


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains:
    """Matches leaves whose path has a key.

    Args:
      key: the attribute name, dict key or index.
      exact: whether the key must be equal; if False, its text may be a part of a key's text.

    Example:
      >>> PathContains("encoder")
      PathContains('encoder')
    """

    key: Hashable
    exact: bool = True

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}{'' if self.exact else ', exact=False'})"


class _Joined:
    filters: tuple[Filter, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", filters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(text, self.filters))})"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Any(_Joined):
    """Matches what at least one of the filters matches.

    Args:
      *filters: the filters; none match nothing.

    Example:
      >>> Any("param", In(dict))
      Any('param', In(dict))
    """

    filters: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class All(_Joined):
    """Matches what every one of the filters matches.

    Args:
      *filters: the filters; none match everything.

    Example:
      >>> All("param", Not(PathContains("head")))
      All('param', Not(PathContains('head')))
    """

    filters: tuple[Filter, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Not:
    """Matches what the filter does not match.

    Args:
      filter: the filter.

    Example:
      >>> Not("param")
      Not('param')
    """

    filter: Filter

    def __repr__(self) -> str:
        return f"Not({text(self.filter)})"


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A filter made ready: call it with a site.

    Attributes:
      matches: the predicate.
      by_path: whether it looks at the path or the enclosing objects, so that each way to a shared object may differ.
    """

    matches: Callable[[Site], bool]
    by_path: bool = False

    def __call__(self, site: Site) -> bool:
        """Whether the filter matches the leaf at this site."""
        return self.matches(site)


def compile_filter(spec: Filter) -> Compiled:
    """Makes a predicate out of a filter.

    A type matches a reference of that type, or a leaf whose value is of that type. A type that itself declares a
    `tag` (a kind such as `Param`) matches every leaf with that tag, in every family; a subclass that declares none
    matches its own instances only.

    A tree of filters has the shape of the object, or of its upper part; a leaf that it does not reach is not matched.
    Most often its leaves are bools (Equinox's `filter_spec`). A callable that is itself a tree with bools in it is
    taken for the tree. A model library's own filter is what its family makes of it (`Family.adapt`).

    Args:
      spec: the filter.

    Returns:
      The predicate, which raises a `FilterError` where a callable returns something other than a bool.

    Raises:
      FilterError: that is no filter.

    Example:
      >>> from liftcore.protocol import Call, Site
      >>> site = Site(Call("vmap", "f"), "in", "model", ("bias",), 1.0, tags=frozenset({"param"}))
      >>> compile_filter(All("param", Not(PathContains("kernel"))))(site)
      True
    """
    if isinstance(spec, np.bool_):
        spec = bool(spec)
    match spec:
        case None | False:
            return Compiled(lambda site: False)
        case True:
            return Compiled(lambda site: True)
        case str():
            return Compiled(lambda site: spec in site.tags)
        case type():
            return _of_type(spec)
        case In():
            return Compiled(lambda site: any(issubclass(owner, spec.owner) for owner in site.owners), by_path=True)
        case PathContains():
            return _of_path(spec)
        case Not():
            inner = compile_filter(spec.filter)
            return Compiled(lambda site: not inner(site), inner.by_path)
        case All():
            return _joined(all, spec.filters)
        case Any():
            return _joined(any, spec.filters)
    if spec is ...:
        return Compiled(lambda site: True)
    if (ours := adapted(spec)) is not spec:
        return compile_filter(ours)
    if isinstance(spec, (list, tuple)) and not hasattr(spec, "_fields"):
        return _joined(any, spec)
    if _is_tree(spec):
        return _of_tree(spec)
    if callable(spec):
        return _of_callable(spec)
    raise FilterError(f"filter {text(spec)}", why=f"A {type(spec).__name__} is no filter.", ways=[_ACCEPTED])


def first(filters: Iterable[Compiled], site: Site) -> int | None:
    """Position of the first filter that matches a site; None if none does."""
    return next((position for position, matches in enumerate(filters) if matches(site)), None)


def text(spec: Filter) -> str:
    """Writes a filter as a person would in code.

    Example:
      >>> text([..., "param", dict])
      "[..., 'param', dict]"
    """
    if spec is ...:
        return "..."
    if isinstance(spec, (list, tuple)):
        return f"[{', '.join(map(text, spec))}]"
    if isinstance(spec, (type, FunctionType)):
        return spec.__qualname__.rpartition("<locals>.")[2]
    return repr(spec)


def _of_type(kind: type) -> Compiled:
    tag = vars(kind).get("tag")
    if isinstance(tag, str):
        return Compiled(lambda site: tag in site.tags)
    return Compiled(lambda site: isinstance(site.reference, kind) or isinstance(site.value, kind))


def _of_path(spec: PathContains) -> Compiled:
    if spec.exact:
        return Compiled(lambda site: spec.key in site.path, by_path=True)
    part = str(spec.key)
    return Compiled(lambda site: any(part in str(key) for key in site.path), by_path=True)


def _joined(join: Callable[[Iterable[bool]], bool], filters: Iterable[Filter]) -> Compiled:
    parts = [compile_filter(part) for part in filters]
    return Compiled(lambda site: join(part(site) for part in parts), any(part.by_path for part in parts))


def _is_tree(spec: Filter) -> bool:
    if jax.tree_util.all_leaves([spec]):
        return False
    return not callable(spec) or any(isinstance(leaf, (bool, np.bool_)) for leaf in jax.tree_util.tree_leaves(spec))


def _of_tree(spec: Filter) -> Compiled:
    table: dict[paths.Path, Compiled] = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(spec)[0]:
        path = paths.from_keys(keys)
        try:
            table[path] = compile_filter(leaf)
        except FilterError as error:
            error.add_note(f"It stands in a tree of filters, at {paths.text('tree', path)}.")
            raise

    def matches(site: Site) -> bool:
        prefixes = (site.path[:length] for length in range(len(site.path) + 1))
        rule = next((table[prefix] for prefix in prefixes if prefix in table), None)
        return rule is not None and rule(site)

    return Compiled(matches, by_path=True)


def _of_callable(spec: Callable[..., typing.Any]) -> Compiled:
    takes_path = _parameters(spec) == 2

    def matches(site: Site) -> bool:
        found = spec(site.path, site.value) if takes_path else spec(site.value)
        if isinstance(found, (bool, np.bool_)):
            return bool(found)
        raise FilterError(
            str(site.call),
            where=f"filter {text(spec)}, at {paths.text(site.root, site.path)}",
            found=[f"it returned {found!r}, of type {type(found).__name__}"],
            why="A filter decides before the function runs, so it must return a bool, not an array.",
            ways=["Decide by type, shape, dtype or path: lambda path, leaf: leaf.ndim == 2."],
        )

    return Compiled(matches, by_path=takes_path)


# inspect.signature is the one slow step of a compilation, and the same few functions come again with every eager call.
_counts: weakref.WeakKeyDictionary[FunctionType, int] = weakref.WeakKeyDictionary()


def _parameters(spec: Callable[..., typing.Any]) -> int:
    if not isinstance(spec, FunctionType):
        return _count(spec)
    if spec not in _counts:
        _counts[spec] = _count(spec)
    return _counts[spec]


def _count(spec: Callable[..., typing.Any]) -> int:
    try:
        parameters = inspect.signature(spec).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    required = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in positional)
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keywords or not positional or required > 2:
        raise FilterError(
            f"filter {text(spec)}",
            found=[f"its parameters: {inspect.signature(spec)}"],
            why="A callable filter is called with the leaf, or with the path and the leaf.",
            ways=["Write lambda leaf: ..., or lambda path, leaf: ... ."],
        )
    return max(required, 1)
