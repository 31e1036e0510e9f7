"""How Sphinx builds this folder, whose pages are plain Markdown for readers on a forge."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_described = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
project = _described["name"]
release = _described["version"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "alabaster"
html_theme_options = {"description": "JAX transforms over any model object", "fixed_sidebar": True}


def _contents(app: Any, page: str, source: list[str]) -> None:
    """Makes the table of contents out of a map's own links, so that no directive stands in its text."""
    if page in ("index", "proposals/README"):
        pages = dict.fromkeys(re.findall(r"\]\(([\w/.-]+)\.md\)", source[0]))
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Any) -> None:
    """Connects the above with Sphinx."""
    app.connect("source-read", _contents)
