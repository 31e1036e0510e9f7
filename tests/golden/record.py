"""Records the messages anew: `python -m tests.golden.record` for all, or with the names of cases."""

from __future__ import annotations

import sys

from tests.golden import broken_calls, broken_objects, broken_state  # noqa: F401  (they note their cases)
from tests.golden.broken import CASES, MESSAGES, raised

if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        (MESSAGES / f"{name}.txt").write_text(raised(name))
