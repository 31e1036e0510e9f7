"""Programs that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_threads"]


def in_threads(*programs: Callable[[], Any]) -> list[Any]:
    """Runs programs at the same time, each in a thread; their results."""
    barrier, results = threading.Barrier(len(programs)), [None] * len(programs)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number] = programs[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results
