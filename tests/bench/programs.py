"""What JAX compiles: the lifted program must be the one that a person would write by hand."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from tests.bench import ensemble, normed, recurrent, training
from tests.bench.steps import Step
from tests.bench.table import Table

__all__ = ["PROGRAMS", "Facts", "all_equal", "compare", "table"]

#: Every program, in several ways; the first is by hand. All of them keep the weights in one order, since XLA's
#: temporary memory depends on the order of a program's outputs.
PROGRAMS: Mapping[str, Mapping[str, Step]] = {
    "training: value_and_grad, scan, remat": training.WAYS,
    "momentum, running means, donated": normed.WAYS,
    "scan: carried, scanned, broadcast": recurrent.WAYS,
    "vmap: own weights, shared mean": ensemble.WAYS,
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is counted in a program.

    Attributes:
      equations: by primitive and types of the results, those of inner programs included.
      traces: how often Python ran each of the user's functions for lowering the program and two calls of it.
      costs: of the compiled program, by name.
    """

    equations: Mapping[str, int]
    traces: Mapping[str, int]
    costs: Mapping[str, int]

    def rows(self, base: Facts) -> dict[str, int]:
        """All of it as numbers, by name; those of `base` stand beside them."""
        other = collections.Counter(self.equations)
        other.subtract(base.equations)
        equations = {
            "equations": sum(self.equations.values()),
            "equations not in common": sum(map(abs, other.values())),
        }
        traces = {f"traces of {name}": self.traces.get(name, 0) for name in sorted({*self.traces, *base.traces})}
        return {**self.costs, **equations, **traces}


def _inner(value: Any) -> Iterator[Any]:
    """The programs in one parameter of an equation."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    for one in several:
        program = getattr(one, "jaxpr", one)
        if hasattr(program, "eqns"):
            yield program


def _equations(program: Any) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    pending = [program]
    while pending:
        for equation in pending.pop().eqns:
            results = sorted(str(variable.aval) for variable in equation.outvars)
            found[f"{equation.primitive.name}: {', '.join(results)}"] += 1
            pending.extend(inner for value in equation.params.values() for inner in _inner(value))
    return found


def _facts(step: Step) -> Facts:
    traces: collections.Counter[str] = collections.Counter()
    jitted = step.make(lambda name: traces.update([name]))
    arguments = step.arguments()
    equations = _equations(jitted.trace(*arguments).jaxpr.jaxpr)
    lowered = jitted.lower(*arguments)
    compiled = lowered.compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    costs = {
        "FLOPs": int(cost["flops"]),
        "bytes accessed": int(cost["bytes accessed"]),
        "temporary bytes": memory.temp_size_in_bytes,
        "argument bytes": memory.argument_size_in_bytes,
        "output bytes": memory.output_size_in_bytes,
        "aliased bytes": memory.alias_size_in_bytes,
        "outputs": len(jax.tree.leaves(lowered.out_info)),
    }
    for _ in range(2):
        jax.block_until_ready(jitted(*step.arguments()))  # type: ignore[no-untyped-call]
    return Facts(equations, traces, costs)


def compare(name: str) -> dict[str, Facts]:
    """The facts of one program, written in each way.

    Args:
      name: one of `PROGRAMS`.
    """
    return {way: _facts(step) for way, step in PROGRAMS[name].items()}


def _verdict(numbers: Sequence[int | None]) -> str:
    return "equal" if all(number in (None, numbers[0]) for number in numbers) else "NOT EQUAL"


def table() -> Table:
    """All programs, fact by fact."""
    ways = tuple(next(iter(PROGRAMS.values())))
    rows = []
    for name in PROGRAMS:
        facts = compare(name)
        columns = {way: found.rows(facts[ways[0]]) for way, found in facts.items()}
        for fact in dict.fromkeys(fact for column in columns.values() for fact in column):
            numbers = [columns[way].get(fact, 0) if way in columns else None for way in ways]
            cells = ("" if number is None else f"{number:,}" for number in numbers)
            rows.append((name, fact, *cells, _verdict(numbers)))
            name = ""
    return Table(
        "Compiled programs",
        ("program", "", *ways, ""),
        rows,
        "All lines must be equal. Inner programs count as well; traces are those of lowering and two calls.",
    )


def all_equal(found: Table) -> bool:
    """Whether every line of `table` is equal."""
    return all(row[-1] == "equal" for row in found.rows)
