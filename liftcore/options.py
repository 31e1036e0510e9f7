"""Transforms as functions and as decorators: the same call without the function gives a decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

__all__ = ["MISSING", "Flexible", "Missing", "decorator"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Flexible(Protocol[P, R]):
    """A transform that can be called with its function, or without it to get a decorator."""

    @overload
    def __call__(self, fun: Callable[..., Any], /, *args: P.args, **options: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Callable[[Callable[..., Any]], R]: ...


class Missing:
    """Type of `MISSING`, which stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


def decorator(transform: Callable[Concatenate[Callable[..., Any], P], R]) -> Flexible[P, R]:
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
    signature = inspect.signature(transform)

    @functools.wraps(transform)
    def flexible(fun: Any = MISSING, *args: Any, **options: Any) -> Any:
        if fun is MISSING:
            signature.bind(fun, *args, **options)  # a wrong option is an error here, not at the function
            return lambda function: transform(function, *args, **options)
        return transform(fun, *args, **options)

    return cast("Flexible[P, R]", flexible)
