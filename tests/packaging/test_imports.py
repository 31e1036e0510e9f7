"""Who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "liftcore"
PLUGINS = ROOT / "plugins" / "liftcore_plugins"
FILES = sorted([*CORE.rglob("*.py"), *PLUGINS.rglob("*.py")])

#: The only files that may import a library, by the library's import root. The rest of JAX is everybody's.
HOMES = {
    "equinox": {"liftcore_plugins.families.equinox"},
    "flax": {"liftcore_plugins.families.flax"},
    "jax.extend": {"liftcore._jax"},
    "jax._src": set(),
    "jaxlib": set(),
}

#: What plugins may import of one another: the family adapts the objects, and layers are built on them.
BUILT_ON = {("families.objects", "objects"), ("nn", "objects")}


def name_of(path: Path) -> str:
    source = CORE.parent if path.is_relative_to(CORE) else PLUGINS.parent
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in FILES}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module (or name in one) that a file imports, anywhere in it, and whether only type checkers see that."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    for_types = {id(inner) for node in checking for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in for_types
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in for_types
        elif isinstance(node, ast.Attribute):
            # `import jax` gives access to all of it.
            yield ast.unparse(node), id(node) in for_types


def module_named(imported: str) -> str:
    """The module of ours that an import reaches: `liftcore.paths.text` is a name in `liftcore.paths`."""
    known = modules()
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported


def layers() -> list[str]:
    """The core's modules in the order of the map in the package's docstring."""
    docstring = ast.get_docstring(ast.parse((CORE / "__init__.py").read_text(encoding="utf-8"))) or ""
    lines = re.findall(r"^ {4}((?:\w+, )*\w+) {2,}\S", docstring, re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def test_the_layer_map_names_every_module_of_the_core_once() -> None:
    mapped = layers()
    exist = {name.removeprefix("liftcore.").partition(".")[0] for name in modules() if name.startswith("liftcore.")}
    assert sorted(mapped) == sorted(exist)


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("liftcore.")])
def test_the_core_imports_one_way_and_no_plugin(name: str) -> None:
    order = ["liftcore." + layer for layer in layers()]
    for imported, _ in imports(modules()[name]):
        assert not imported.startswith("liftcore_plugins")
        target = module_named(imported)
        assert target != "liftcore", f"{name} imports the face"
        if target.startswith("liftcore.") and target != name:
            above = [order.index(".".join(module.split(".")[:2])) for module in (target, name)]
            assert above == sorted(above), f"{name} imports {target}, which stands below it in the map"


def test_the_face_imports_plugins_for_type_checkers_only() -> None:
    of_plugins = [for_types for imported, for_types in imports(CORE / "__init__.py") if "liftcore_plugins" in imported]
    assert of_plugins
    assert all(of_plugins)


def unit(name: str) -> str:
    """The plugin that a module belongs to: a file of a folder of plugins, or a folder that is one package."""
    parts = name.split(".")[1:]
    return ".".join(parts[:1] if parts[0] in ("objects", "nn") else parts[:2])


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("liftcore_plugins.")])
def test_a_plugin_imports_public_modules_and_no_other_plugin(name: str) -> None:
    for imported, _ in imports(modules()[name]):
        target = module_named(imported)
        assert not re.search(r"^liftcore\.(\w+\.)*_[a-z]", imported), f"{name} imports {imported}, which is private"
        assert target != "liftcore_plugins", f"{name} imports the table"
        if target.startswith("liftcore_plugins."):
            pair = unit(name), unit(target)
            assert pair[0] == pair[1] or pair in BUILT_ON, f"{name} imports {target}"


def test_the_table_is_plain_data() -> None:
    assert list(imports(PLUGINS / "__init__.py")) == []


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_in_its_home_only(library: str) -> None:
    found = {
        name
        for name, path in modules().items()
        for imported, _ in imports(path)
        if (imported + ".").startswith(library + ".")
    }
    assert found <= HOMES[library]
