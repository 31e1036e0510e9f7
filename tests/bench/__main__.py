"""The bench's command line: `python -m tests.bench`, from the checkout's root."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence

import equinox
import jax

from tests.bench import dispatch, eager, growth, imports, layers, profile, programs, tracing
from tests.bench.rounds import Limits
from tests.bench.table import Table

__all__ = ["main"]

_FULLY = Limits(rounds=2000, seconds=8)
_QUICKLY = Limits(rounds=5, seconds=0)
# Of what makes new programs each time, so that further calls make nothing faster.
_ONCE = Limits(rounds=1, seconds=0, warm_up=1)

#: Each part of the bench, in full and quickly.
_PARTS: Mapping[str, tuple[Callable[[], Table], Callable[[], Table]]] = {
    "dispatch": (lambda: dispatch.table(_FULLY), lambda: dispatch.table(_QUICKLY, sizes=(8,))),
    "equinox": (lambda: layers.table(_FULLY), lambda: layers.table(_QUICKLY, sizes=(2,))),
    "profile": (lambda: profile.table(_FULLY), lambda: profile.table(_QUICKLY, variables=4, layers=2)),
    "growth": (lambda: growth.table(_FULLY), lambda: growth.table(_QUICKLY, sizes=(2, 20))),
    "eager": (lambda: eager.table(_FULLY), lambda: eager.table(_QUICKLY, variables=4)),
    "tracing": (lambda: tracing.table(_FULLY), lambda: tracing.table(_ONCE)),
    "import": (lambda: imports.table(9), lambda: imports.table(1)),
    "programs": (programs.table, programs.table),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench.

    Args:
      arguments: those of the command line.

    Returns:
      The exit status: 1 if a lifted program is not the one that was written by hand.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds and small models, to see that it runs")
    parser.add_argument("--only", choices=tuple(_PARTS), help="one part of it")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    options = parser.parse_args(arguments)
    print(
        f"JAX {jax.__version__}, Equinox {equinox.__version__}, Python {platform.python_version()}, "
        f"{jax.default_backend()}, {os.cpu_count()} cores"
    )
    status = 0
    for name, (fully, quickly) in _PARTS.items():
        if options.only in (None, name):
            table = quickly() if options.quick else fully()
            print("\n" + table.render(markdown=options.markdown), flush=True)
            status |= name == "programs" and not programs.all_equal(table)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
