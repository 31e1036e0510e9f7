"""The README: its Python runs as written, in one session, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import liftcore as lift
from liftcore_plugins import TABLE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A block of Python, and what it prints, if that stands below.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_the_python_runs_as_written_and_prints_what_stands_below(capsys: pytest.CaptureFixture[str]) -> None:
    session: dict[str, Any] = {"__name__": "readme"}
    blocks = [(match[1], match[2] or "") for match in BLOCK.finditer(README)]
    assert len(blocks) == README.count("```python")
    try:
        for code, printed in blocks:
            exec(compile(code, "README.md", "exec"), session)
            assert capsys.readouterr().out == printed
    finally:
        if "nan_checked" in lift.registry.transforms.names():
            lift.registry.transforms.remove("nan_checked")


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_transform_and_lift_type_is_told() -> None:
    names = [name for kind, name in TABLE if kind in ("transform", "lift")]
    assert not [name for name in names if f"`lift.{name}" not in README]
