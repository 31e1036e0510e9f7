"""Time of an import, in new processes."""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

import liftcore
import liftcore_plugins
from tests.bench.table import Table

__all__ = ["libraries", "table"]

#: What a program begins with, one after the other.
_STEPS: Mapping[str, str] = {
    "import jax": "import jax",
    "import liftcore": "import liftcore",
    "liftcore.jit, liftcore.Module": "liftcore.jit, liftcore.Module",
}

#: Libraries of models and of what goes with them, which an import of ours must leave alone.
_LIBRARIES = ("equinox", "flax", "haiku", "optax", "penzai", "sklearn", "torch")

# Both imports in one process: the difference of two processes is as large as what the machine does besides.
_PROGRAM = """
import sys, time
marks = [time.perf_counter()]
for step in sys.argv[1:]:
    exec(step)
    marks.append(time.perf_counter())
print(*(after - before for before, after in zip(marks, marks[1:])))
print(*sys.modules)
"""


def _environment() -> dict[str, str]:
    """Everything is found where this process found it, and bytecode is kept, as it is for an installed package."""
    roots = [str(pathlib.Path(package.__path__[0]).parent) for package in (liftcore, liftcore_plugins)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join((*roots, *sys.path))}


def _run(steps: Sequence[str]) -> tuple[list[float], list[str]]:
    """The time of each step in seconds, and the modules that are loaded at the end."""
    # -S: what finds an editable install at start-up has imported some of what liftcore needs, which would be free.
    command = [sys.executable, "-S", "-c", _PROGRAM, *steps]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_environment())
    times, modules = done.stdout.splitlines()
    return [float(time) for time in times.split()], modules.split()


def libraries(steps: Sequence[str]) -> list[str]:
    """The model libraries that are loaded after these steps."""
    _, modules = _run(steps)
    return [name for name in _LIBRARIES if name in modules]


def table(processes: int) -> Table:
    """Times in so many processes, after a first one that leaves bytecode behind, and the model libraries in it."""
    steps = tuple(_STEPS.values())
    loaded = ", ".join(libraries(steps)) or "none"
    measured = [_run(steps)[0] for _ in range(processes)]
    medians = [statistics.median(times) * 1e3 for times in zip(*measured, strict=True)]
    return Table(
        "Import",
        ("", *_STEPS, "model libraries"),
        [("one after the other", *(f"{median:+,.0f}" for median in medians), loaded)],
        "Milliseconds in a new process: median. Model libraries are those that are loaded at the end.",
    )
