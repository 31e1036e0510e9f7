"""How a message is put to the test: a program that goes wrong, then the same program with each way out taken.

A case is a generator. What it yields first must raise, with the text in `messages/<name of the case>.txt`; whatever it
yields after that is what the message tells to write instead, and must run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CASES", "Programs", "broken"]

Programs = Iterator[Callable[[], Any]]

CASES: dict[str, Callable[[], Programs]] = {}


def broken(case: Callable[[], Programs]) -> Callable[[], Programs]:
    """Notes a case under its function's name."""
    CASES[case.__name__] = case
    return case
