"""The seam: the only file that touches `jax.extend`, and the only one that may know a JAX version."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["is_eager", "trace_state"]


# jax.extend loads Pallas, which takes as long as all of liftcore: it waits for the first call.
@functools.cache
def _of_jax() -> tuple[Callable[..., Any], Callable[..., Any], object]:
    """Finds the current trace; tells a trace from others; JAX's one trace for what is computed at once."""
    from jax.extend.core import find_top_trace, get_opaque_trace_state

    with jax.ensure_compile_time_eval():
        return find_top_trace, get_opaque_trace_state, find_top_trace(())  # type: ignore[no-untyped-call]


def is_eager() -> bool:
    """Whether nothing is traced in this thread, so that JAX computes at once.

    Example:
      >>> inside = []
      >>> _ = jax.jit(lambda x: inside.append(is_eager()) or x)(1.0)
      >>> is_eager(), inside
      (True, [False])
    """
    find_top_trace, _, eager = _of_jax()
    return find_top_trace(()) is eager


def trace_state() -> object:
    """The JAX trace that is now active in this thread, to be compared with `==`.

    A mutable cell is written safely only under the trace in which it was made: any other trace has nothing that carries
    the new value out.

    Returns:
      An opaque object, equal to another one if both come from the same trace. It keeps no trace alive.

    Example:
      >>> outside, inside = trace_state(), []
      >>> _ = jax.jit(lambda x: inside.append(trace_state()) or x)(1.0)
      >>> outside == trace_state(), outside == inside[0]
      (True, False)
    """
    _, get_opaque_trace_state, _ = _of_jax()
    state: object = get_opaque_trace_state()
    return state
