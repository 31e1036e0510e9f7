"""Time to trace and lower the training step, by functions that JAX has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench import training
from tests.bench.rounds import Contender, Limits
from tests.bench.steps import Step, ignore
from tests.bench.table import Table
from tests.bench.timed import MILLISECONDS, timed

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


def _contenders() -> dict[str, Contender]:
    return {name: _lowering(step) for name, step in _STEPS.items()}


def table(limits: Limits) -> Table:
    """Times of the training step, in each way."""
    return timed("Trace and lower", {"jit of value_and_grad of scan of remat": _contenders}, limits, MILLISECONDS)
