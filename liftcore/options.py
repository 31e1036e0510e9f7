"""Transforms as functions and as decorators: the same call without the function gives a decorator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["MISSING", "Missing", "decorator"]

F = TypeVar("F", bound=Callable[..., Any])


class Missing:
    """Type of `MISSING`, which stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


def decorator(transform: F) -> F:
    """Lets a transform be called without its function, to be used as a decorator with options.

    Args:
      transform: `transform(f, **options)`.

    Returns:
      The same; without the first argument it returns a function of it.

    Example:
      >>> @decorator
      ... def twice(f, *, then=lambda y: y): return lambda x: then(f(f(x)))
      >>> @twice(then=abs)
      ... def less(x): return x - 1
      >>> less(0)
      2
    """

    @functools.wraps(transform)
    def flexible(f: Any = MISSING, *args: Any, **options: Any) -> Any:
        if f is MISSING:
            return lambda function: transform(function, *args, **options)
        return transform(f, *args, **options)

    return flexible  # type: ignore[return-value]
