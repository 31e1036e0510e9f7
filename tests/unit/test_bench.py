"""A lifted program is the one that a person would write by hand, and the bench says so when it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.bench import dispatch, programs
from tests.bench.__main__ import main
from tests.bench.rounds import Limits, compare
from tests.bench.steps import Count, Step


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_the_lifted_program_is_the_one_written_by_hand(name: str) -> None:
    facts = programs.compare(name)
    by_hand = facts.pop("by hand")
    assert by_hand.costs["FLOPs"] > 0
    assert by_hand.costs["temporary bytes"] > 0
    assert set(by_hand.traces.values()) == {1}
    assert facts
    for lifted in facts.values():
        assert dataclasses.asdict(lifted) == dataclasses.asdict(by_hand)


def stacking(kept: int) -> Step:
    def make(count: Count) -> Any:
        def body(carry: Any, x: Any) -> Any:
            count("body")
            return carry, carry * x

        return jax.jit(lambda w, xs: jax.lax.scan(body, w, xs)[1][-kept:])

    return Step(make, lambda: (jnp.ones(8), jnp.ones((4, 8))))


@pytest.mark.parametrize(("kept", "verdict", "status"), [(1, "equal", 0), (2, "NOT EQUAL", 1)])
def test_a_program_that_differs_is_reported_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, kept: int, verdict: str, status: int
) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", {"stacks": {"by hand": stacking(1), "objects": stacking(kept)}})
    lines = {line[1]: line[2:] for line in programs.table().rows}
    assert lines["output bytes"] == ("32", str(32 * kept), verdict)
    assert lines["outputs"] == ("1", "1", "equal")
    assert main(["--quick", "--only", "programs"]) == status


@pytest.mark.parametrize("part", ["dispatch", "tracing"])
def test_the_quick_bench_prints_a_table(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--markdown", "--only", part]) == 0
    header, rule, *rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header.split("|")[2:-1]][1:] == [
        "lift.jit, objects",
        "lift.jit, Equinox",
        "eqx.filter_jit",
    ]
    assert set(rule) == set("|:-")
    assert rows
    for row in rows:
        assert row.count("x)") == 4
        assert "(1.00x)" in row


@pytest.mark.parametrize("step", ["reads all", "writes all"])
def test_all_contenders_for_dispatch_compute_the_same(step: str) -> None:
    contenders = dispatch.contenders(8, step)
    for _ in range(3):
        results = [contender()() for contender in contenders.values()]
        for result in results:
            assert jnp.array_equal(result, results[0])


def test_rounds_are_interleaved_and_ratios_are_to_the_first() -> None:
    calls: list[str] = []

    def contender(name: str, size: int) -> Callable[[], Callable[[], jax.Array]]:
        def run() -> jax.Array:
            calls.append(name)
            return jnp.ones(size)

        return lambda: run

    timings = compare({"a": contender("a", 1), "b": contender("b", 2)}, Limits(rounds=3, seconds=60, warm_up=1))
    assert calls == ["a", "b"] * 4
    assert timings["a"].ratio == 1
    assert timings["b"].median > 0
