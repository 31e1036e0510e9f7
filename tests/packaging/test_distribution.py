"""The distribution: what the wheel holds and says."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the source tree with the build tools of the test environment."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    return zipfile.ZipFile(path)


def info(wheel: zipfile.ZipFile, name: str) -> str:
    (member,) = (
        each for each in wheel.namelist() if re.fullmatch(rf"liftcore-[^/]*\.dist-info/(licenses/)?{name}", each)
    )
    return wheel.read(member).decode()


def test_the_wheels_top_level_is_the_two_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"liftcore", "liftcore_plugins"}


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "liftcore"), (ROOT / "plugins", "liftcore_plugins"))
        for path in (base / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert {"liftcore/py.typed", "liftcore_plugins/py.typed"} <= sources
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == sources


def test_the_wheel_declares_its_plugins_like_a_strangers(wheel: zipfile.ZipFile) -> None:
    declared = configparser.ConfigParser()
    declared.read_string(info(wheel, "entry_points.txt"))
    assert dict(declared["liftcore.plugins"]) == {"liftcore_plugins": "liftcore_plugins"}


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(info(wheel, "METADATA"))
    assert metadata["Name"] == "liftcore"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needs = {re.match(r"[\w-]+", need)[0] for need in metadata.get_all("Requires-Dist") if "extra ==" not in need}
    assert needs == {"jax", "jaxlib", "numpy", "equinox", "typeguard"}
    assert set(metadata.get_all("Provides-Extra")) == {"optax", "test", "docs", "examples"}
    assert "Version 2.0, January 2004" in info(wheel, "LICENSE")


def test_the_newest_version_in_the_changelog_is_the_projects() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S*)", changelog, re.MULTILINE)[0] == PROJECT["version"]
