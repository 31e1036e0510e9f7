"""Every error of liftcore: one hierarchy, one form of message.

A message says, in this order: what was attempted (transform and function), where (parameter and path), what was found
on both sides, why that cannot work, and numbered ways out, each with a line of code.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

__all__ = [
    "AliasError",
    "AxisError",
    "BindError",
    "CaptureError",
    "CarryError",
    "FilterError",
    "GradError",
    "LiftError",
    "LiftWarning",
    "PathError",
    "PrefixError",
    "RegistryError",
    "StaticError",
    "StructureError",
    "TransformTypeError",
    "TransformValueError",
    "WriteError",
    "message",
    "warn",
]


def message(
    attempted: str,
    *,
    where: str = "",
    found: Sequence[str] = (),
    why: str = "",
    ways: Sequence[str] = (),
) -> str:
    """Lays out one message in the form that all of liftcore's errors share.

    Args:
      attempted: what the user asked for, such as "vmap of forward".
      where: the parameter and path, such as "argument model, at model.bn.mean".
      found: what stands on each side of the conflict, one line each.
      why: why it cannot work, one or two sentences.
      ways: ways out, each a sentence with a line of code.

    Returns:
      The text, several lines.

    Example:
      >>> print(message("vmap of f", where="argument x", why="It is odd.", ways=["Write f(y)."]))
      vmap of f: argument x
      It is odd.
      Way out: Write f(y).
    """
    lines = [f"{attempted}: {where}" if where else attempted]
    lines += [f"  {line}" for line in found]
    if why:
        lines.append(why)
    if len(ways) == 1:
        lines.append(f"Way out: {ways[0]}")
    elif ways:
        lines.append("Ways out:")
        lines += [f"  {number}. {way}" for number, way in enumerate(ways, 1)]
    return "\n".join(lines)


class LiftError(Exception):
    """Base of all errors that liftcore raises; built from the parts of `message`.

    Args:
      attempted: see `message`; the other parts are keywords with the same names.
    """

    def __init__(
        self,
        attempted: str,
        *,
        where: str = "",
        found: Sequence[str] = (),
        why: str = "",
        ways: Sequence[str] = (),
    ) -> None:
        super().__init__(message(attempted, where=where, found=found, why=why, ways=ways))


class AliasError(LiftError, ValueError):
    """One shared object was given two different specs."""


class AxisError(LiftError, ValueError):
    """An axis does not exist, or mapped sizes differ."""


class BindError(LiftError, TypeError):
    """The arguments do not fit the function's parameters."""


class CaptureError(LiftError, ValueError):
    """A captured reference was written, returned, or passed as well.

    Attributes:
      passed_too: whether it was read although it is passed as well.
    """

    passed_too: bool = False


class CarryError(LiftError, TypeError):
    """A loop's carry left with another structure, shape or dtype than it came in with."""


class FilterError(LiftError, ValueError):
    """A filter matches nothing, or is no filter."""


class GradError(LiftError, TypeError):
    """The function cannot be differentiated as asked."""


class PathError(LiftError, ValueError):
    """A state names a path that the object does not have, or lacks one that it needs."""


class PrefixError(LiftError, ValueError):
    """A prefix does not fit the argument or output that it stands for."""


class RegistryError(LiftError, LookupError):
    """A plugin is missing, clashes with another, or breaks the protocol."""


class StaticError(LiftError, TypeError):
    """A static value or metadata holds an array."""


class StructureError(LiftError, ValueError):
    """A change of structure cannot be carried out of this transform."""


class TransformTypeError(LiftError, TypeError):
    """JAX refused with a TypeError; its text is kept."""


class TransformValueError(LiftError, ValueError):
    """JAX refused with a ValueError; its text is kept."""


class WriteError(LiftError, ValueError):
    """A reference was written that may not be, under its spec."""


class LiftWarning(UserWarning):
    """Something that works, and is rarely what was meant."""


_LIBRARIES = ("liftcore", "liftcore_plugins", "jax", "jaxlib", "contextlib", "functools")


def warn(words: str) -> None:
    """Warns at the line of the user's code that led here: the innermost one that is neither ours nor JAX's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(words, LiftWarning, stacklevel=level)
