"""StateAxes: another spelling for each kind of leaf in one argument."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from liftcore import filters, statics
from liftcore.axes import SHARED
from liftcore.errors import FilterError
from liftcore.paths import text
from liftcore.protocol import Filter, LiftType, Site

__all__ = ["StateAxes"]


class StateAxes(LiftType):
    """A prefix leaf that chooses by filter; the first filter that matches a leaf decides.

    Any transform takes it: what the spellings mean is the transform's own word, so that `Carry` may stand in it in a
    scan, and a stranger's spelling in a stranger's transform.

    Args:
      axes: mapping from filters to spellings (0, None, Carry, a spec, another lift type), or pairs of them, for filters
        that are no dict keys (lists, trees of bools).

    Raises:
      FilterError: a key is no filter, or stands behind `...`, where it can never match.

    Example:
      >>> StateAxes({"param": 0, ...: None})
      StateAxes({'param': 0, ...: None})
    """

    def __init__(self, axes: Mapping[Filter, Any] | Iterable[tuple[Filter, Any]]) -> None:
        self._entries = tuple(axes.items() if isinstance(axes, Mapping) else axes)
        self._filters = tuple(filters.compile_filter(spec) for spec, _ in self._entries)
        nested = (value.by_path for _, value in self._entries if isinstance(value, LiftType))
        self.by_path = any(spec.by_path for spec in self._filters) or any(nested)
        for position, (spec, _) in enumerate(self._entries[:-1]):
            if _is_rest(spec):
                before, rest, after = self._entries[:position], self._entries[position], self._entries[position + 1 :]
                raise FilterError(
                    repr(self),
                    found=[f"{filters.text(later)} stands behind {filters.text(spec)}" for later, _ in after],
                    why=f"The first match wins, and {filters.text(spec)} matches every leaf.",
                    ways=[f"Write it last: {_written((*before, *after, rest))}."],
                )

    def values(self, transform: str) -> Sequence[Any]:
        """All spellings in it, and SHARED where None may be meant for a random stream; lift types in it as they are."""
        found = [value for _, value in self._entries]
        picked = any(value is None and not _is_rest(spec) for spec, value in self._entries)
        return [*found, SHARED] if picked else found

    def resolve(self, site: Site) -> Any:
        """The spelling of the first filter that matches.

        None for a random stream that the user picked out means that equal numbers in every lane are wanted.

        Raises:
          FilterError: no filter matches.
        """
        position = filters.first(self._filters, site)
        if position is None:
            tags = ", ".join(map(repr, sorted(site.tags))) or "none"
            tried = ", ".join(filters.text(spec) for spec, _ in self._entries)
            raise FilterError(
                str(site.call),
                where=text(site.root, site.path),
                found=[f"its tags: {tags}", f"the filters: {tried or 'none'}"],
                why="No filter matches it.",
                ways=[f"Say what happens to the rest: {_written([*self._entries, (..., None)])}."],
            )
        spec, value = self._entries[position]
        return SHARED if value is None and "rng" in site.tags and not _is_rest(spec) else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateAxes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return _written(self._entries)

    @functools.cached_property
    def _key(self) -> Hashable:
        return statics.key(self._entries)


def _written(entries: Iterable[tuple[Filter, Any]]) -> str:
    return f"StateAxes({{{', '.join(f'{filters.text(spec)}: {value!r}' for spec, value in entries)}}})"


def _is_rest(spec: Filter) -> bool:
    return spec is ... or spec is True
