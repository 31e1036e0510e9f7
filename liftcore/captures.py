"""Captured references: cells that a lifted function reads although nobody passed them.

Each trace of a lifted function runs in a *frame*. A cell knows the token of the frame in which it was made; a read from
another frame reads a captured reference, and is answered with the value of a hidden input; a write is an error.
Families whose cells report (own objects) call `read` and `check_write`. For the others the function is searched when
it is bound (`liftcore.binding`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from liftcore._jax import trace_state
from liftcore.errors import CaptureError
from liftcore.protocol import Call, Reference

__all__ = ["Frame", "check_write", "entered", "is_passed", "read", "token", "trace_state"]


class Frame:
    """One trace of one lifted function.

    Attributes:
      call: the lifted call, for messages.
      token: identifies the frame to the cells made in it.
      parent: the frame around it, or None.
      hidden: inner cell by id of the captured cell that it stands for.
      passed: where a cell was passed (the text of it is for messages), by id: reading it as a captured one too is an
        error.
      missing: captured cells by id that were read and are not hidden inputs yet.
    """

    __slots__ = ("call", "hidden", "missing", "parent", "passed", "token")

    def __init__(self, call: Call, hidden: Mapping[int, Any], passed: Mapping[int, object]) -> None:
        self.call = call
        self.token = object()
        self.parent: Frame | None = None
        self.hidden = hidden
        self.passed = passed
        self.missing: dict[int, Any] = {}


class _Local(threading.local):
    frame: Frame | None = None


_local = _Local()


def token() -> object | None:
    """Token of the innermost lifted call being traced in this thread; None outside of all.

    Example:
      >>> token() is None
      True
    """
    frame = _local.frame
    return None if frame is None else frame.token


@contextlib.contextmanager
def entered(frame: Frame) -> Iterator[Frame]:
    """Makes a frame the innermost one of this thread."""
    frame.parent = _local.frame
    _local.frame = frame
    try:
        yield frame
    finally:
        _local.frame = frame.parent


def is_passed(cell: Any) -> bool:
    """Whether a cell was passed to a lifted call that is being traced in this thread."""
    frame = _local.frame
    while frame is not None and id(cell) not in frame.passed:
        frame = frame.parent
    return frame is not None


def read(cell: Any, kind: Reference, born: object | None) -> Any:
    """Reads a cell that reports: its own value, or that of the hidden input which stands for it.

    Args:
      cell: the cell.
      kind: how to read it.
      born: token of the frame in which it was made.

    Raises:
      CaptureError: the cell was also passed to the function that reads it as a captured one.
    """
    frame = _local.frame
    while frame is not None and born is not frame.token:
        inner = frame.hidden.get(id(cell))
        if inner is not None:
            return kind.read(inner)
        if id(cell) in frame.passed:
            error = CaptureError(
                str(frame.call),
                where=f"a captured {type(cell).__name__}",
                found=[f"passed as {frame.passed[id(cell)]}", "captured from outside of the function, and read inside"],
                why="Inside, the argument and the captured object would be two objects with two values.",
                ways=[f"Use {frame.passed[id(cell)]} in the function's body instead of the captured object."],
            )
            error.passed_too = True
            raise error
        frame.missing[id(cell)] = cell
        frame = frame.parent
    return kind.read(cell)


def check_write(cell: Any, born: object | None) -> None:
    """Refuses a write to a captured cell.

    Raises:
      CaptureError: the innermost lifted call did not get this cell as an argument and did not make it.
    """
    frame = _local.frame
    if frame is None or born is frame.token:
        return
    raise CaptureError(
        str(frame.call),
        where=f"a captured {type(cell).__name__} was written",
        found=[f"{cell!r}"],
        why="The function closes over it: a captured reference may be read, not written, since nothing carries the new "
        "value out.",
        ways=[f"Pass the object that holds it as an argument: lift.{frame.call.transform}(f)(obj, ...)."],
    )
