"""DiffState: which leaves of one argument are differentiated."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

from liftcore import filters, statics
from liftcore.errors import PrefixError
from liftcore.protocol import Filter, LiftType, Site

__all__ = ["DiffState"]

# These take prefixes of another meaning: said here, the message names what the user wrote. A stranger's transform is
# asked instead, by giving it the spelling.
_NO_DERIVATIVES = frozenset(("jit", "map", "pmap", "scan", "shard_map", "vmap"))


class DiffState(LiftType):
    """Stands among the `argnums` of a derivative, and differentiates what a filter picks in that argument.

    As a prefix leaf it gives the spelling "diff" to what the filter matches, and None to the rest.

    Args:
      argnum: the argument's number, or its name.
      filter: what to differentiate in it.

    Raises:
      FilterError: that is no filter.

    Example:
      >>> DiffState(0, "param")
      DiffState(0, 'param')
    """

    def __init__(self, argnum: int | str, filter: Filter) -> None:
        self.argnum = argnum
        self.filter = filter
        self._matches = filters.compile_filter(filter)
        self.by_path = self._matches.by_path

    def values(self, transform: str) -> Sequence[str | None]:
        """The spellings "diff" and None.

        Raises:
          PrefixError: the transform differentiates nothing.
        """
        if transform in _NO_DERIVATIVES:
            picked = filters.text(self.filter)
            raise PrefixError(
                transform,
                where=f"a prefix holds {self!r}",
                why=f"DiffState says what is differentiated, and {transform} differentiates nothing.",
                ways=[
                    f"Differentiate: lift.grad(f, argnums={self!r}).",
                    f"Choose an axis by filter: lift.StateAxes({{{picked}: 0, ...: None}}).",
                ],
            )
        return ("diff", None)

    def resolve(self, site: Site) -> str | None:
        """The spelling "diff" where the filter matches, else None."""
        return "diff" if self._matches(site) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiffState) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"DiffState({self.argnum!r}, {filters.text(self.filter)})"

    @functools.cached_property
    def _key(self) -> Hashable:
        return statics.key((self.argnum, self.filter))
