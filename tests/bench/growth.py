"""How the time of one call grows with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.bench import dispatch
from tests.bench.rounds import Contender, Limits
from tests.bench.table import Table
from tests.bench.timed import MICROSECONDS, timed

__all__ = ["table"]

#: Variables of the models.
SIZES = (200, 2000)


def table(limits: Limits, sizes: Sequence[int] = SIZES) -> Table:
    """Times of steps that read and write all, each way against itself."""

    def row(way: str, step: str) -> Callable[[], Mapping[str, Contender]]:
        return lambda: {f"{size:,} variables": dispatch.contenders(size, step)[way] for size in sizes}

    rows = {
        f"{way}, {step}": row(way, step)
        for step in ("reads all", "writes all")
        for way in (dispatch.FLAT, dispatch.OBJECTS)
    }
    return timed("Growth", rows, limits, MICROSECONDS)
