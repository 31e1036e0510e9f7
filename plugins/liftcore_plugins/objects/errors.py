"""Errors of own objects, in the hierarchy and the form of `liftcore.errors`."""

from __future__ import annotations

from liftcore.errors import LiftError

__all__ = ["ObjectError", "StreamError"]


class ObjectError(LiftError, TypeError):
    """A variable or module was defined or used in a way that would lose something."""


class StreamError(LiftError, AttributeError, ValueError):
    """A random stream does not exist, or cannot be drawn from or split as asked."""
