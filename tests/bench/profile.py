"""Where the host time of a planned call goes, step by step."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax

import liftcore as lift
from liftcore.engine import _Planned
from tests.bench.blocks import Model, anew, arrays, read, read_cells, write, write_cells
from tests.bench.layers import Stack
from tests.bench.rounds import Limits, rounds, uncollected
from tests.bench.table import Table

__all__ = ["table"]


@dataclasses.dataclass
class _Case:
    """A function of the arrays alone and one of the model; neither is called by anybody else."""

    by_hand: Callable[[Any], Any]
    arrays: Any
    lifted: Any
    model: Any


def _cases(variables: int, layers: int) -> dict[str, _Case]:
    flat, stack = arrays(variables), Stack(layers)

    def case(by_hand: Callable[[Any], Any], given: Any, step: Callable[[Any], Any], model: Any) -> _Case:
        return _Case(jax.jit(anew(by_hand)), given, lift.jit(anew(step)), model)

    return {
        f"{variables} variables, reads all": case(read, flat, read_cells, Model(flat)),
        f"{variables} variables, writes all": case(write, flat, write_cells, Model(flat)),
        f"Equinox, {layers} layers": case(read, eqx.filter(stack, eqx.is_array), read, stack),
    }


def _wait(value: Any) -> Any:
    return jax.block_until_ready(value)  # type: ignore[no-untyped-call]


def _steps(case: _Case) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and steps of one call, each to be taken before the next."""
    yield "jax.jit of the arrays, to compare", lambda: _wait(case.by_hand(case.arrays))
    yield "the whole call", lambda: _wait(case.lifted(case.model))
    match: Any = None
    outs: Any = None

    def look() -> None:
        nonlocal match
        match = case.lifted._plans.find((True, 1), (case.model,))

    yield "guards", look
    planned = _Planned(match, (case.model,), case.lifted, (case.model,), {})
    yield "buckets", planned.buckets
    buckets = planned.buckets()

    def run() -> None:
        nonlocal outs
        outs = _wait(planned.built.run(*buckets))

    yield "jax.jit of the buckets", run
    yield "result and writes", lambda: planned.merge(outs)


def _taken(steps: Iterator[tuple[str, Callable[[], Any]]]) -> dict[str, float]:
    """What each step took, in seconds."""
    times = {}
    for name, step in steps:
        start = time.perf_counter()
        step()
        times[name] = time.perf_counter() - start
    return times


def _measured(cases: Mapping[str, _Case], limits: Limits) -> dict[str, list[dict[str, float]]]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(limits.warm_up):
        for case in cases.values():
            _wait((case.by_hand(case.arrays), case.lifted(case.model)))
    for _ in rounds(limits):
        with uncollected():
            # All cases in turn, so that each finds the machine's caches as others have left them.
            for name, case in cases.items():
                measured[name].append(_taken(_steps(case)))
    return measured


def table(limits: Limits, variables: int = 72, layers: int = 8) -> Table:
    """Times of each step of a call, by case."""
    measured = _measured(_cases(variables, layers), limits)
    steps = tuple(next(iter(measured.values()))[0])

    def cell(name: str, step: str) -> str:
        return f"{statistics.median(times[step] for times in measured[name]) * 1e6:,.1f}"

    return Table(
        "Profile",
        ("", *measured),
        [(step, *(cell(name, step) for name in measured)) for step in steps],
        "Microseconds a call, medians.",
    )
