"""Time to trace and lower the training step, by functions that JAX has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench import training
from tests.bench.rounds import Contender, Limits, compare
from tests.bench.steps import Step, ignore
from tests.bench.table import Table

__all__ = ["table"]

_STEPS: Mapping[str, Step] = {
    "jax.jit, by hand": training.WAYS["by hand"],
    "lift.jit, objects": training.WAYS["objects"],
    "lift.jit, Equinox": training.WAYS["Equinox"],
    "eqx.filter_jit": training.EQUINOX_ALONE,
}


def _lowering(step: Step) -> Contender:
    arguments = step.arguments()

    def ready() -> Any:
        jitted = step.make(ignore)

        def lower() -> None:
            jitted.lower(*arguments)

        return lower

    return ready


def table(limits: Limits) -> Table:
    """Times of the training step, in each way."""
    timings = compare({name: _lowering(step) for name, step in _STEPS.items()}, limits)
    cells = (f"{timing.median * 1e3:,.1f} ({timing.ratio:.2f}x)" for timing in timings.values())
    return Table(
        "Trace and lower",
        ("step", *timings),
        [("training: value_and_grad, scan, remat", *cells)],
        f"Milliseconds: median, and in brackets the median ratio to {next(iter(timings))} in the same round.",
    )
