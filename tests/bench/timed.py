"""Tables of times: a row for each comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tests.bench.rounds import Contender, Limits, Timing, compare
from tests.bench.table import Table

__all__ = ["MICROSECONDS", "MILLISECONDS", "Unit", "timed"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """How times are written.

    Attributes:
      name: in the plural.
      number: so many are a second.
      digits: after the point.
    """

    name: str
    number: float
    digits: int

    def cell(self, timing: Timing) -> str:
        """One timing."""
        return f"{timing.median * self.number:,.{self.digits}f} ({timing.ratio:.2f}x)"


MICROSECONDS = Unit("Microseconds", 1e6, 0)
MILLISECONDS = Unit("Milliseconds", 1e3, 1)


def timed(title: str, rows: Mapping[str, Callable[[], Mapping[str, Contender]]], limits: Limits, unit: Unit) -> Table:
    """Runs comparisons, one after the other, and tells their times.

    Args:
      title: what it is about.
      rows: by name, what makes the contenders of each comparison; all have the same names.
      limits: of each comparison.
      unit: how times are written.
    """
    timings = {name: compare(make(), limits) for name, make in rows.items()}
    names = tuple(next(iter(timings.values())))
    return Table(
        title,
        ("", *names),
        [(name, *(unit.cell(found[column]) for column in names)) for name, found in timings.items()],
        f"{unit.name} a call: median, and in brackets the median ratio to {names[0]} in the same round.",
    )
