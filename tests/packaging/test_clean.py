"""The source tree: formatted, linted, typed, and free of the machine that it was written on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Built in pieces, so that this file does not name what it looks for.
MACHINE = re.compile(r"(?<![\w.~/-])/(?:work|home|root|Users|tmp|mnt|opt)/\w")


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_is_content() -> None:
    run("ruff", "check", ".")


def test_every_file_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


def test_the_type_checker_is_content_with_both_packages_and_their_use() -> None:
    run("mypy")


def sources() -> list[Path]:
    folders = ("liftcore", "plugins", "tests", "docs", "examples", ".ci")
    below = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    kinds = {".py", ".md", ".toml", ".yaml", ".txt", ".json", ""}
    return [path for path in (*below, *ROOT.glob("*")) if path.is_file() and path.suffix in kinds]


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", ["tests", "digits"])
def test_the_readme_has_the_commands_that_continuous_integration_runs(command: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^<!-- command: {command} -->\n+```\w*\n(.+?)\n```$", readme, re.MULTILINE | re.DOTALL)
    assert block.startswith("python3 -m venv .venv")


def test_continuous_integration_can_be_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
