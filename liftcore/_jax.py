"""The seam: the only file that touches `jax.extend`, and the only one that may know a JAX version."""

from __future__ import annotations

import jax
from jax.extend.core import find_top_trace, get_opaque_trace_state

__all__ = ["is_eager", "trace_state"]

# JAX has one trace for what is computed at once, in all threads.
with jax.ensure_compile_time_eval():
    _EAGER: object = find_top_trace(())  # type: ignore[no-untyped-call]


def is_eager() -> bool:
    """Whether nothing is traced in this thread, so that JAX computes at once.

    Example:
      >>> inside = []
      >>> _ = jax.jit(lambda x: inside.append(is_eager()) or x)(1.0)
      >>> is_eager(), inside
      (True, [False])
    """
    return find_top_trace(()) is _EAGER  # type: ignore[no-untyped-call]


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
    state: object = get_opaque_trace_state()  # type: ignore[no-untyped-call]
    return state
