"""What the bench compares: one program, written in several ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Count", "Step", "descend", "ignore", "mean_square", "running"]

#: Told the name of a user's function each time that Python runs it, so each time that JAX traces it.
Count = Callable[[str], None]


def ignore(name: str) -> None:
    """Counts nothing."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One way to write a program.

    Attributes:
      make: makes a new jitted function. All functions in it are new as well, so that JAX has never traced them.
      arguments: makes the arguments of one call.
    """

    make: Callable[[Count], Any]
    arguments: Callable[[], tuple[Any, ...]]


def mean_square(difference: Any) -> jax.Array:
    """The loss of all programs."""
    return jnp.mean(difference**2)


def descend(params: Any, gradients: Any) -> Any:
    """One step of gradient descent, on any container."""
    return jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)


def running(mean: Any, h: Any) -> Any:
    """A running mean of activations of shape (batch, width)."""
    return 0.9 * mean + 0.1 * h.mean(0)
