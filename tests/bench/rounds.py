"""Times of several ways to do one thing, in interleaved rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

__all__ = ["Contender", "Limits", "Timing", "calling", "compare", "rounds", "threading", "uncollected"]

#: Makes ready what one round times, and returns it: a function whose result is waited for.
Contender = Callable[[], Callable[[], Any]]


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long to measure.

    Attributes:
      rounds: number of rounds at most.
      seconds: no further round begins after this time, but for the first `fewest`.
      fewest: number of rounds at least.
      warm_up: rounds before the first that counts. A lifted function has its plans after a few calls.
    """

    rounds: int
    seconds: float
    fewest: int = 5
    warm_up: int = 6


@dataclasses.dataclass(frozen=True)
class Timing:
    """One contender's time.

    Attributes:
      median: of all rounds, in seconds.
      ratio: median over the rounds of its time over the first contender's time in the same round. What slows down
        the machine for a while slows down both, so that this is steadier than the ratio of the medians.
    """

    median: float
    ratio: float


def calling(step: Callable[[Any], Any], model: Any) -> Contender:
    """Calls a step with one model each time."""
    return lambda: functools.partial(step, model)


def threading(step: Callable[[Any], Any], model: Any, first: Callable[[Any], Any]) -> Contender:
    """Calls a step with the model that it returned before.

    Args:
      step: from a model to the next.
      model: that of the first call.
      first: the array of a model that is waited for.
    """

    def run() -> Any:
        nonlocal model
        model = step(model)
        return first(model)

    return lambda: run


def compare(contenders: Mapping[str, Contender], limits: Limits) -> dict[str, Timing]:
    """Times all contenders in turn, once in each round.

    Args:
      contenders: by name; ratios are to the first.
      limits: how many rounds.

    Returns:
      A timing for each.
    """
    names = tuple(contenders)
    for _ in range(limits.warm_up):
        _round(tuple(contenders.values()))
    measured = [_round(tuple(contenders.values())) for _ in rounds(limits)]
    columns = dict(zip(names, zip(*measured, strict=True), strict=True))
    first = columns[names[0]]
    return {
        name: Timing(statistics.median(times), statistics.median(map(operator.truediv, times, first)))
        for name, times in columns.items()
    }


def rounds(limits: Limits) -> Iterator[int]:
    """The number of each round that counts; the time runs from the first on."""
    gc.collect()
    end = time.perf_counter() + limits.seconds
    for number in range(limits.rounds):
        if number >= limits.fewest and time.perf_counter() >= end:
            return
        yield number


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within this context no garbage is collected, which would fall on whoever is timed then."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _round(contenders: Sequence[Contender]) -> tuple[float, ...]:
    ready = [contender() for contender in contenders]
    times = []
    with uncollected():
        for run in ready:
            start = time.perf_counter()
            jax.block_until_ready(run())  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - start)
    return tuple(times)
