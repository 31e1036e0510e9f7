"""Tables of times: a row for each comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tests.bench.rounds import Contender, Limits, Timing, compare
from tests.bench.table import Table

__all__ = ["MICROSECONDS", "MILLISECONDS", "MILLISECONDS_MORE", "Style", "timed"]


@dataclasses.dataclass(frozen=True)
class Style:
    """How times are written.

    Attributes:
      cell: one timing.
      note: how to read it; `{first}` stands for the name of the first contender.
    """

    cell: Callable[[Timing], str]
    note: str


MICROSECONDS = Style(
    lambda timing: f"{timing.median * 1e6:,.0f} ({timing.ratio:.2f}x)",
    "Microseconds a call: median, and in brackets the median ratio to {first} in the same round.",
)
MILLISECONDS = Style(
    lambda timing: f"{timing.median * 1e3:,.1f} ({timing.ratio:.2f}x)",
    "Milliseconds: median, and in brackets the median ratio to {first} in the same round.",
)
MILLISECONDS_MORE = Style(
    lambda timing: f"{timing.median * 1e3:,.0f} ({timing.extra * 1e3:+,.0f})",
    "Milliseconds: median, and in brackets the median of how much more than {first} in the same round.",
)


def timed(title: str, rows: Mapping[str, Callable[[], Mapping[str, Contender]]], limits: Limits, style: Style) -> Table:
    """Runs comparisons, one after the other, and tells their times.

    Args:
      title: what it is about.
      rows: by name, what makes the contenders of each comparison; all have the same names.
      limits: of each comparison.
      style: how times are written.
    """
    timings = {name: compare(make(), limits) for name, make in rows.items()}
    names = tuple(next(iter(timings.values())))
    return Table(
        title,
        ("", *names),
        [(name, *(style.cell(found[column]) for column in names)) for name, found in timings.items()],
        style.note.format(first=names[0]),
    )
