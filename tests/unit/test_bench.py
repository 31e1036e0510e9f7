"""A lifted program is the one that a person would write by hand, and the bench says so when it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore as lift
from tests.bench import dispatch, eager, imports, layers, programs
from tests.bench.__main__ import main
from tests.bench.rounds import Contender, Limits, compare
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


@pytest.mark.parametrize("part", ["dispatch", "equinox", "growth", "eager", "tracing"])
def test_the_quick_bench_prints_times_and_ratios(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    header, rows = printed(part, capsys)
    assert rows
    for row in rows:
        assert len(row) == len(header)
        assert row[1].endswith("(1.00x)")
        assert all(cell.endswith("x)") for cell in row[2:])


def test_the_quick_bench_prints_where_a_call_goes(capsys: pytest.CaptureFixture[str]) -> None:
    header, rows = printed("profile", capsys)
    assert len(header) == 4
    assert len(rows) == 6
    for row in rows:
        assert all(float(cell.replace(",", "")) > 0 for cell in row[1:])


def test_the_quick_bench_prints_what_an_import_takes_and_loads(capsys: pytest.CaptureFixture[str]) -> None:
    _, ((_, *times, loaded),) = printed("import", capsys)
    assert len(times) == 3
    assert all(time.startswith("+") for time in times)
    assert loaded == "none"


def test_model_libraries_that_are_loaded_are_found() -> None:
    assert imports.libraries(["import equinox"]) == ["equinox"]


def printed(part: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[list[str]]]:
    """The header and rows of the one table of a part."""
    assert main(["--quick", "--markdown", "--only", part]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    header, rule, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert set("".join(rule)) == set(":-")
    return header, rows


#: By name, what makes the contenders of each comparison whose results are alike.
COMPARISONS: Mapping[str, Callable[[], Mapping[str, Contender]]] = {
    **{f"dispatch, {step}": partial(dispatch.contenders, 6, step) for step in ("reads all", "writes all")},
    **{f"equinox, {case}": partial(layers.contenders, 2, case) for case in layers.CASES},
    **{f"eager, {name}": partial(make, 6) for name, make in eager.TRANSFORMS.items()},
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_all_contenders_compute_the_same(name: str) -> None:
    contenders = COMPARISONS[name]()
    for _ in range(4):
        base, *others = [contender()() for contender in contenders.values()]
        assert base.size
        for other in others:
            assert jnp.allclose(other, base, rtol=1e-6)


@pytest.mark.parametrize("name", COMPARISONS)
def test_what_is_timed_goes_by_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lifted: list[Any] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            def transform(*args: Any, **kwargs: Any) -> Any:
                lifted.append(getattr(lift, name)(*args, **kwargs))
                return lifted[-1]

            return transform

    for module in (dispatch, layers, eager):
        monkeypatch.setattr(module, "lift", Recording())
    contenders = COMPARISONS[name]()

    def call_each() -> list[Any]:
        for contender in contenders.values():
            contender()()
        return [function.stats() for function in lifted]

    *_, warm, after = (call_each() for _ in range(Limits(rounds=1, seconds=0).warm_up + 1))
    assert warm
    for one, next_ in zip(warm, after, strict=True):
        assert (next_.calls, next_.planned) == (one.calls + 1, one.planned + 1)


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
