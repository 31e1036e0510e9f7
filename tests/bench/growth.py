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
    """Times of a step that reads all, each way against itself."""

    def row(way: str) -> Callable[[], Mapping[str, Contender]]:
        return lambda: {f"{size:,} variables": dispatch.contenders(size, "reads all")[way] for size in sizes}

    return timed("Growth", {way: row(way) for way in (dispatch.FLAT, dispatch.OBJECTS)}, limits, MICROSECONDS)
