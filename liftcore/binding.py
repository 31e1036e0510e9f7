"""Binding: which parameter each argument of a lifted call belongs to, and how the function is called with them.

A callable object, or the object of a bound method, is itself an implicit argument. What the function captures is a
hidden one: the function itself is taken apart with the other arguments, and the one that runs is rebuilt around the
inner objects.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from liftcore.errors import BindError
from liftcore.families import is_object
from liftcore.paths import CAPTURED
from liftcore.protocol import Arguments, Call

__all__ = ["Bound", "Target", "name_of"]


def name_of(function: Any) -> str:
    """A function's name for messages."""
    function = getattr(function, "func", function) if isinstance(function, functools.partial) else function
    name: str = getattr(function, "__qualname__", None) or type(function).__name__
    return name.rpartition("<locals>.")[2]


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """One call's arguments.

    Attributes:
      values: each argument by name: the parameter's, "xs[0]" for one of *xs, the keyword's for one of **kwargs.
      arguments: how they were passed.
      spelled: the keyword of each argument passed by keyword, by its name.
    """

    values: dict[str, Any]
    arguments: Arguments
    spelled: dict[str, str]

    def apply(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Calls a function with other values in the places of these arguments."""
        names = self.arguments
        first = () if names.bound is None else (names.bound,)
        return function(
            *[values[name] for name in (*first, *names.positional)],
            **{self.spelled[name]: values[name] for name in names.keywords},
        )


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        own = inspect.signature(function, follow_wrapped=False)
        # A decorator shows what it wraps. Where it names parameters of its own, those are what it takes.
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = any(parameter.kind not in variable for parameter in own.parameters.values())
        return own if named else inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return None


class Target:
    """What a user lifts: a function, and the object that it is bound to, if any.

    Args:
      function: a function, a bound method, a callable object, or anything else that can be called.
      implicit: whether what it is bound to becomes an argument.

    Attributes:
      function: what is called, with the bound object first.
      owner: the bound object; None without one.
      name: for messages.
    """

    def __init__(self, function: Callable[..., Any], *, implicit: bool = True) -> None:
        if not callable(function):
            raise BindError(
                "Lifting a function",
                where=f"a {type(function).__name__} is not callable: {function!r:.80}",
                ways=["Pass a function, a bound method, or an object whose class defines __call__."],
            )
        owner = getattr(function, "__self__", None)
        bare = getattr(function, "__func__", None)
        self.name = name_of(function)
        self.owner: Any = None
        self.function = function
        if not implicit:
            pass
        elif bare is not None and is_object(owner):
            self.function, self.owner = bare, owner
        elif is_object(function):
            self.function, self.owner = type(function).__call__, function
            self.name = type(function).__name__
        signature = _signature(self.function)
        self._signature = signature
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = signature.parameters.values() if signature else ()
        self._parameters = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
        self._rest = next(
            (parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL), "args"
        )

    def bind(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], captured: Any) -> Bound:
        """Binds one call's arguments to names.

        Args:
          call: for messages.
          args: positional arguments, the bound object left out.
          kwargs: keyword arguments.
          captured: value of the hidden argument.

        Raises:
          BindError: the function does not take these arguments.
        """
        parameters, bound = self._parameters, None
        values: dict[str, Any] = {}
        if self.owner is not None:
            bound = parameters[0] if parameters else "self"
            parameters = parameters[1:]
            values[bound] = self.owner
        if self._signature is not None:
            try:
                self._signature.bind(*([self.owner] if bound else []), *args, **kwargs)
            except TypeError as error:
                raise BindError(
                    str(call),
                    where=f"the arguments do not fit {self.name}{self._signature}",
                    found=[f"{len(args)} positional arguments, keywords: {', '.join(kwargs) or 'none'}"],
                    why=f"{error}.",
                    ways=[f"Call it with the parameters that it has: {self.name}{self._signature}."],
                ) from None
        positional = [
            parameters[index] if index < len(parameters) else f"{self._rest}[{index - len(parameters)}]"
            for index in range(len(args))
        ]
        values.update(zip(positional, args, strict=True))
        # With f(x, /, **rest) a keyword may have the name of an argument before it.
        spelled = {f"rest[{name!r}]" if name in values else name: name for name in kwargs}
        values.update({name: kwargs[keyword] for name, keyword in spelled.items()})
        values[CAPTURED] = captured
        arguments = Arguments(tuple(positional), tuple(spelled), bound, CAPTURED, parameters, call)
        return Bound(values, arguments, spelled)
