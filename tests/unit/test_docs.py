"""The documentation is true: each block of Python in docs/ runs, page by page, and does what stands below it.

Words behind the language of a block say how it is run:

- `raises`, `warns`: it ends with an error, or warns, and the message is the text block below.
- `file=NAME`: it is a file, from which other blocks import; several blocks with one name are one file.
- `script`: it runs in a process of its own, where the page's files are an installed distribution.

With UPDATE_DOCS=1 in the environment, text blocks that differ are written anew, to be read before they are committed.
"""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import doctest
import importlib
import inspect
import io
import itertools
import os
import re
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import liftcore
from liftcore import errors, registry
from liftcore_plugins.objects import errors as object_errors
from tests.conformance.matrix import cells

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "text", "toml", "bash"}
REGISTRIES = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language and further words, its text, its first line's number, where its output stands."""

    words: tuple[str, ...]
    text: str
    line: int
    output: tuple[int, int] | None

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    result = []
    for fence, after in itertools.pairwise([*found, None]):
        assert fence is not None
        output = None
        if after is not None and after["info"] == "text" and not text[fence.end() : after.start()].strip():
            output = after.span("text")
        line = text.count("\n", 0, fence.start("text")) + 1
        result.append(Block(tuple(fence["info"].split()), fence["text"], line, output))
    return result


def run(page: str, block: Block, scope: dict[str, Any]) -> str:
    """Runs a block in the page's namespace; what it printed, and the error or warning with which it ended."""
    code = compile("\n" * (block.line - 1) + block.text, str(PAGES[page]), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if "raises" in block.words:
            with pytest.raises(Exception) as raised:  # noqa: PT011 (the text below the block says which)
                exec(code, scope)
            print(f"{type(raised.value).__name__}: {raised.value}")
        elif "warns" in block.words:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                exec(code, scope)
            for warning in caught:
                print(f"{warning.category.__name__}: {warning.message}")
        else:
            exec(code, scope)
    return printed.getvalue()


def install(page: str, folder: Path) -> None:
    """Makes a folder look as if the distribution that a page's files describe were installed in it."""
    for block in blocks(page):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(block.text + "\n")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    with (metadata / "entry_points.txt").open("w") as file:
        points.write(file)


def run_script(block: Block, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(block.text, encoding="utf-8")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; afterwards neither modules nor registries know of it."""
    registered = [frozenset(each.names()) for each in REGISTRIES]
    imported = frozenset(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for each, names in zip(REGISTRIES, registered, strict=True):
        for name in frozenset(each.names()) - names:
            each.remove(name)
    for name in frozenset(sys.modules) - imported:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_blocks_of_a_page_do_what_it_says(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dataclasses look their annotations up in the module, and functions compare by it.
    module = types.ModuleType("page_" + re.sub(r"\W", "_", PAGES[page].stem))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known = set(cells())
    text = PAGES[page].read_text(encoding="utf-8")
    different: list[tuple[Block, str, str]] = []
    if any(block.file for block in blocks(page)):
        install(page, folder)
    for block in blocks(page):
        assert block.words, f"{page}:{block.line}: a block without a language"
        assert block.words[0] in LANGUAGES, f"{page}:{block.line}: a block in {block.words[0]!r}"
        if block.words[0] != "python" or block.file is not None:
            continue
        got = run_script(block, folder) if "script" in block.words else run(page, block, vars(module))
        want = text[slice(*block.output)] if block.output else ""
        if not doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS):
            different.append((block, want, got))
    if "UPDATE_DOCS" in os.environ:
        for block, _, got in reversed(different):
            assert block.output, f"{page}:{block.line} prints, and has no text block below: {got}"
            text = text[: block.output[0]] + got + text[block.output[1] :]
        PAGES[page].write_text(text, encoding="utf-8")
    assert not different, "\n".join(f"{page}:{block.line}\n{want}not\n{got}" for block, want, got in different)
    for cell in set(cells()) - known:
        cell.check_values()
        cell.check_values(liftcore.jit)
        cell.check_gradients()
        cell.check_interrupted()


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", PAGES[page].read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    text = FENCE.sub("", PAGES[page].read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        path = (PAGES[page].parent / file).resolve() if file else PAGES[page]
        assert path in PAGES.values(), f"{page}: {target}"
        linked = path.relative_to(DOCS).as_posix()
        assert not anchor or anchor in anchors(linked), f"{page}: {target}"


def test_every_page_is_linked_from_the_map_or_from_the_index_of_proposals() -> None:
    linked = set()
    for page in ("index.md", "proposals/README.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[)#]", PAGES[page].read_text(encoding="utf-8")):
            linked.add((PAGES[page].parent / target).resolve())
    assert set(PAGES.values()) - linked == {PAGES["index.md"]}


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    for file in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (DOCS.parent / file).exists(), f"{page}: {file}"
    named = re.findall(r"`(test_\w+)`", text)
    files = (DOCS.parent / "tests").rglob("test_*.py") if named else ()
    defined = {
        name for file in files for name in re.findall(r"^def (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(named) <= defined


def documented() -> dict[str, dict[str, str]]:
    """The reference: what stands behind each name, by module and name."""
    modules: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", PAGES["reference.md"].read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        module = re.match(r"`([\w.]+)`", section)
        assert module, section
        entries = re.findall(r"^- `(\w+)([^`]*)`:", section, re.MULTILINE)
        assert len(entries) == len(re.findall(r"^- ", section, re.MULTILINE)), f"{module[1]}: an entry of another form"
        assert len(entries) == len(dict(entries)), f"{module[1]}: a name stands twice"
        modules[module[1]] = {name: " ".join(signature.split()) for name, signature in entries}
    return modules


def signature(value: Any) -> str:
    """The parameters without annotations; a default that is no plain value is written as three dots."""
    called = value
    if isinstance(value, type):
        # A class's own parameters are those of its __init__; the errors all have those of their base.
        called = inspect.getattr_static(value, "__init__")
        inherited = issubclass(value, errors.LiftError) and value is not errors.LiftError
        if inherited or getattr(value, "_is_protocol", False) or not inspect.isfunction(called):
            return ""
    try:
        found = inspect.signature(called)
    except (TypeError, ValueError):  # nothing to call, or nothing that tells
        return ""
    parameters = []
    for parameter in list(found.parameters.values())[isinstance(value, type) :]:
        default = parameter.default
        plain = default is None or isinstance(default, (bool, int, str, tuple))
        if default is not parameter.empty and not plain:
            parameter = parameter.replace(default=...)
        parameters.append(parameter.replace(annotation=parameter.empty))
    return str(inspect.Signature(parameters)).replace("Ellipsis", "...")


@pytest.mark.parametrize("module", documented())
def test_the_reference_has_every_public_name_with_its_signature(module: str) -> None:
    found = importlib.import_module(module)
    names = set(found.__all__)
    if found is liftcore:
        names |= set(registry.CATALOG.names())
        assert names <= set(dir(liftcore))
    public = {name: getattr(found, name) for name in names}
    assert documented()[module] == {name: signature(value) for name, value in public.items()}


def test_the_page_of_errors_has_every_class() -> None:
    headings = re.findall(r"^#+ `(\w+)`", PAGES["how-to/errors.md"].read_text(encoding="utf-8"), re.MULTILINE)
    classes = {*errors.__all__, *object_errors.__all__} - {"message", "warn"}
    assert sorted(headings) == sorted(classes)


def test_every_proposal_is_in_the_index_with_its_status() -> None:
    index = PAGES["proposals/README.md"].read_text(encoding="utf-8")
    for page, path in PAGES.items():
        if re.match(r"proposals/\d{4}-", page) and "0000-" not in page:
            text = path.read_text(encoding="utf-8")
            title = re.match(r"# (.+)\n", text)
            status = re.search(r"^- Status: (.+)$", text, re.MULTILINE)
            assert title, page
            assert status, page
            assert f"[{title[1]}]({path.name}) | {status[1]} |" in index, page


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
