"""Time of an import, in new processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import liftcore
import liftcore_plugins
from tests.bench.rounds import Contender, Limits
from tests.bench.table import Table
from tests.bench.timed import MILLISECONDS_MORE, timed

__all__ = ["libraries", "table"]

#: What a program begins with.
_PROGRAMS: Mapping[str, str] = {
    "import jax": "import jax",
    "import liftcore": "import liftcore",
    "and liftcore.jit, Module": "import liftcore; liftcore.jit, liftcore.Module",
}

#: Libraries of models and of what goes with them, which an import of ours must leave alone.
_LIBRARIES = ("equinox", "flax", "haiku", "optax", "penzai", "sklearn", "torch")


def _environment() -> dict[str, str]:
    """Everything is found where this process found it, and bytecode is kept, as it is for an installed package."""
    roots = [str(pathlib.Path(package.__path__[0]).parent) for package in (liftcore, liftcore_plugins)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join((*roots, *sys.path))}


def _python(program: str) -> str:
    # -S: what finds an editable install at start-up has imported some of what liftcore needs, which would be free.
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_environment()).stdout


def libraries(program: str) -> list[str]:
    """The model libraries that a program imports."""
    loaded = _python(f"{program}\nimport sys\nprint(*sys.modules)").split()
    return [name for name in _LIBRARIES if name in loaded]


def _contender(program: str) -> Contender:
    def run() -> Any:
        _python(program)

    return lambda: run


def _contenders() -> dict[str, Contender]:
    return {name: _contender(program) for name, program in _PROGRAMS.items()}


def table(limits: Limits) -> Table:
    """Times of whole processes, and the model libraries in them."""
    times = timed("Import", {"new process": _contenders}, limits, MILLISECONDS_MORE)
    loaded = (", ".join(libraries(program)) or "none" for program in _PROGRAMS.values())
    return Table(times.title, times.header, [*times.rows, ("model libraries", *loaded)], times.note)
