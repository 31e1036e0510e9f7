"""How a message is put to the test: a program that goes wrong, then the same program with each way out taken.

A case is a generator. What it yields first must raise, with the text in `messages/<name of the case>.txt`; whatever it
yields after that is what the message tells to write instead, and must run.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from liftcore.errors import LiftError, LiftWarning

__all__ = ["CASES", "MESSAGES", "Programs", "broken", "raised"]

Programs = Iterator[Callable[[], Any]]

CASES: dict[str, Callable[[], Programs]] = {}
MESSAGES = pathlib.Path(__file__).parent / "messages"


def broken(case: Callable[[], Programs]) -> Callable[[], Programs]:
    """Notes a case under its function's name."""
    CASES[case.__name__] = case
    return case


def raised(name: str) -> str:
    """The text of what the first program of a case raises or warns."""
    program = next(CASES[name]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            program()
        except (LiftError, LiftWarning) as error:
            return f"{type(error).__name__}: {error}\n"
    raise AssertionError(f"{name} raised nothing")
