"""`jax.checkpoint` over objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from liftcore import prefixes
from liftcore.engine import Lifted, lift
from liftcore.options import decorator
from liftcore.protocol import STATIC, Arguments, Case, LiftSpec, Program

__all__ = ["case", "remat"]


@decorator
def remat(
    fun: Callable[..., Any],
    *,
    prevent_cse: bool = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Lifted:
    """Computes a function again in the backward pass rather than keeping its intermediates, as `jax.checkpoint` does.

    Args:
      fun: the function, bound method or callable object.
      prevent_cse: see `jax.checkpoint`; False is right within `scan` and `jit`.
      policy: which intermediates may be kept: one of `jax.checkpoint_policies`.
      static_argnums: arguments that are static values; what f is bound to is not counted.

    Returns:
      A function with the same values and gradients.

    Raises:
      BindError: there is no such argument.
      CaptureError: f wrote or returned an object that it closes over.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> float(jax.grad(remat(lambda x: jnp.sin(x) ** 2))(0.0))
      0.0

    Source: `jax.checkpoint`, also known as `jax.remat`.
    """
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    def ins(arguments: Arguments) -> Mapping[str, Any]:
        result: dict[str, Any] = dict.fromkeys(arguments.names())
        result.update(dict.fromkeys(prefixes.selected(arguments, static, word="static_argnums"), STATIC))
        return result

    def run(program: Program) -> Callable[..., Any]:
        (pure,) = program.pures
        return jax.checkpoint(pure, prevent_cse=prevent_cse, policy=policy)

    return lift(fun, LiftSpec(name="remat", run=run, ins=ins, key=(prevent_cse, policy, static)))


case = Case(lift=lambda f, prefix: remat(f), plain=lambda f, picked: jax.checkpoint(f))
