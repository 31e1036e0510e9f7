"""The registry: lazy entries, discovery, clashes and what is checked when."""

from __future__ import annotations

import functools
import importlib
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import liftcore
from liftcore import registry
from liftcore.errors import LiftWarning, RegistryError
from liftcore.protocol import Family
from liftcore.registry import Catalog, Provider, Registry

GROUP = "liftcore.tests"
FUNCTION = "collections.abc:Callable"

Install = Callable[..., None]


@pytest.fixture
def catalog() -> Catalog:
    """Three registries of their own: two public ones and one that is not."""
    made = Catalog(GROUP, "liftcore.protocol:PROTOCOL")
    Registry(made, "transform", FUNCTION, public=True)
    Registry(made, "object", "builtins:object", public=True)
    Registry(made, "family", "liftcore.protocol:Family")
    return made


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a distribution with one table (a module of source text) on the path, as an installer would."""
    before = set(sys.modules)

    def install(name: str, table: str, **modules: str) -> None:
        root = tmp_path / name
        info = root / f"{name}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}_table\n")
        for module, source in {f"{name}_table": table, **modules}.items():
            (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(root)

    yield install
    for module in set(sys.modules) - before:
        if Path(getattr(sys.modules[module], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[module]


def table(**rows: str) -> str:
    return f"PROTOCOL = 1\nTABLE = { {('transform', name): target for name, target in rows.items()} }\n"


def twice(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: f(f(x))


def test_an_object_is_added_found_and_removed(catalog: Catalog) -> None:
    catalog["transform"].add("twice", twice)
    assert catalog["transform"].get("twice") is twice
    assert catalog["transform"].names() == ("twice",)
    assert catalog.get("twice") is twice
    catalog["transform"].remove("twice")
    assert catalog["transform"].names() == ()
    with pytest.raises(RegistryError, match="transform 'twice'"):
        catalog["transform"].remove("twice")


def test_a_lazy_entry_is_imported_when_it_is_asked_for(catalog: Catalog, install: Install) -> None:
    install("lazy", table(twice="lazy_code:twice"), lazy_code="def twice(f): return f")
    assert catalog.names() == ("twice",)
    assert "lazy_table" in sys.modules
    assert "lazy_code" not in sys.modules
    assert catalog.get("twice") is sys.modules["lazy_code"].twice
    assert catalog["transform"].provider("twice") == Provider("lazy", "1.5", "lazy_table")


def test_the_same_entry_twice_is_one(catalog: Catalog) -> None:
    transforms = catalog["transform"]
    transforms.add("twice", twice)
    transforms.add("twice", twice)
    transforms.add("partial", "functools:partial")
    transforms.add("partial", "functools:partial")
    assert transforms.get("partial") is functools.partial
    assert transforms.names() == ("partial", "twice")


def test_a_clash_names_both_providers(catalog: Catalog) -> None:
    catalog["transform"].add("twice", "a.b:twice", provider=Provider("first", "1.0"))
    with pytest.raises(RegistryError) as caught:
        catalog["transform"].add("twice", twice, provider=Provider("second", "2.0"))
    assert "{('transform', 'twice'): 'a.b:twice'}, from first 1.0" in str(caught.value)
    assert "from second 2.0" in str(caught.value)
    with pytest.raises(RegistryError, match=r"Both want the same name"):
        catalog["object"].add("twice", 3)
    catalog["family"].add("twice", Family("twice", lambda cls: None))


def test_a_clash_of_two_distributions_leaves_neither_and_keeps_the_rest(catalog: Catalog, install: Install) -> None:
    install("one", table(twice="functools:partial", single="functools:wraps"))
    install("two", table(twice="functools:reduce", double="functools:lru_cache"))
    with pytest.warns(LiftWarning, match=r"from one 1.5 \(TABLE of one_table\)\n.*from two 1.5 \(TABLE of two_table\)"):
        assert catalog.names() == ("double", "single", "twice")
    for _ in range(2):
        with pytest.raises(RegistryError, match="Uninstall the distribution that you do not want"):
            catalog.get("twice")
    assert catalog.get("single") is functools.wraps
    assert catalog.get("double") is functools.lru_cache
    catalog["transform"].remove("twice")
    catalog["transform"].add("twice", "functools:reduce")
    assert catalog.get("twice") is functools.reduce


def test_names_of_the_package_itself_are_not_for_entries(catalog: Catalog) -> None:
    catalog.reserve(["split"])
    with pytest.raises(RegistryError, match=r"lift\.split: part of the package itself"):
        catalog["transform"].add("split", twice)
    catalog["family"].add("split", Family("split", lambda cls: None))


def test_an_unknown_name_is_answered_with_close_ones(catalog: Catalog, install: Install) -> None:
    install("known", table(twice="functools:partial"))
    with pytest.raises(RegistryError, match=r"transform 'twise'\n.*\n.*\n  1\. Did you mean twice\?\n  2\. Install"):
        catalog["transform"].get("twise")
    with pytest.raises(AttributeError, match=r"lift\.twise\n.*\n.*\n  1\. Did you mean twice\?"):
        catalog.get("twise")
    with pytest.raises(RegistryError, match="Use one of: transform, object, family"):
        catalog["transfrom"]


def test_without_any_plugin_the_way_out_is_to_install(catalog: Catalog) -> None:
    with pytest.raises(RegistryError, match=r"python -m pip install -e \."):
        catalog["transform"].get("vmap")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_library", r"ModuleNotFoundError.*no_such_library[\s\S]*pip install no_such_library"),
        ("TABLE = {}", "has no attribute 'PROTOCOL'"),
        ("PROTOCOL = 2\nTABLE = {}", "PROTOCOL = 2\n.*speaks protocol 1"),
        ("PROTOCOL = 1", "has no attribute 'TABLE'"),
        ("PROTOCOL = 1\nTABLE = [1]", "is not a mapping"),
        ("PROTOCOL = 1\nTABLE = {'twice': 'a:b'}", r"row \{'twice': 'a:b'\}"),
        ("PROTOCOL = 1\nTABLE = {('transform', 'twice'): 3}", r"row \{\('transform', 'twice'\): 3\}"),
        ("PROTOCOL = 1\nTABLE = {('transfrom', 'twice'): 'a:b'}", "there are transform, object, family"),
        ("PROTOCOL = 1\nTABLE = {('transform', 'twice'): 'a.b'}", 'as "module:attribute"'),
        ("PROTOCOL = 1\nTABLE = {('transform', 'two times'): 'a:b'}", "must be a Python identifier"),
    ],
)
def test_a_broken_table_is_loud_and_leaves_the_others(
    catalog: Catalog, install: Install, source: str, said: str
) -> None:
    install("broken", source)
    install("sound", table(wraps="functools:wraps"))
    with pytest.warns(LiftWarning, match=rf"broken 1.5 \(TABLE of broken_table\)[\s\S]*{said}"):
        assert catalog.names() == ("wraps",)
    assert catalog.get("wraps") is functools.wraps
    with pytest.raises(RegistryError, match=said) as caught:
        catalog["transform"].get("twice")
    assert "broken 1.5 (TABLE of broken_table)" in str(caught.value.__cause__)
    assert caught.value.__cause__.__cause__ is not None


def test_an_entry_that_cannot_be_loaded_names_row_and_distribution(catalog: Catalog, install: Install) -> None:
    rows = table(bad="half_code:twice", good="functools:wraps", absent="half_absent:twice", needs="half_needs:twice")
    install("half", rows, half_code="raise OSError('no disk')", half_needs="import no_such_library")
    assert catalog.names() == ("absent", "bad", "good", "needs")
    with pytest.raises(RegistryError) as caught:
        catalog.get("bad")
    assert "{('transform', 'bad'): 'half_code:twice'}, from half 1.5 (TABLE of half_table)" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(RegistryError, match=r"pip install no_such_library$"):
        catalog.get("needs")
    with pytest.raises(RegistryError, match=r"It could not be loaded\.$"):
        catalog.get("absent")
    assert catalog.get("good") is functools.wraps


def test_an_entry_is_checked_when_it_is_loaded(catalog: Catalog, install: Install) -> None:
    install("wrong", table(three="wrong_code:three"), wrong_code="three = 3")
    with pytest.raises(RegistryError, match=r"from wrong 1\.5 \(TABLE of wrong_table\)\n.*is not callable"):
        catalog.get("three")


def test_an_object_is_checked_when_it_is_added_down_to_its_fields(catalog: Catalog) -> None:
    with pytest.raises(RegistryError, match=r"family 'mine'\n.*\n.*is not an instance of liftcore\.protocol\.Family"):
        catalog["family"].add("mine", b"mine")
    with pytest.raises(RegistryError, match=r"field kind: .*has too many mandatory positional arguments"):
        catalog["family"].add("mine", Family("mine", lambda cls, more: None))
    with pytest.raises(RegistryError, match='as "module:attribute"'):
        catalog["transform"].add("mine", "my_package.mine")
    assert catalog["family"].names() == ()


def test_temporary_replaces_and_restores_also_after_an_error(catalog: Catalog) -> None:
    transforms = catalog["transform"]
    transforms.add("twice", twice)
    with pytest.raises(KeyError), transforms.temporary("twice", "functools:wraps"), transforms.temporary("new", twice):  # noqa: PT012
        assert transforms.get("twice") is functools.wraps
        assert transforms.names() == ("new", "twice")
        raise KeyError
    assert transforms.get("twice") is twice
    assert transforms.names() == ("twice",)
    catalog["object"].add("thing", 3)
    with pytest.raises(RegistryError, match="Both want the same name"), transforms.temporary("thing", twice):
        pass
    assert catalog.get("thing") == 3


def test_each_change_is_counted(catalog: Catalog) -> None:
    transforms = catalog["transform"]
    seen = [transforms.version]
    transforms.add("twice", twice)
    seen.append(transforms.version)
    with transforms.temporary("twice", functools.wraps):
        seen.append(transforms.version)
    seen.append(transforms.version)
    transforms.remove("twice")
    seen.append(transforms.version)
    assert sorted(set(seen)) == seen


def test_a_table_that_looks_something_up_is_refused(
    catalog: Catalog, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "catalog_of_this_test", catalog, raising=False)
    install("eager", "from liftcore import registry\nregistry.catalog_of_this_test.names()")
    with pytest.warns(LiftWarning, match=r"eager 1.5 .*\n.*\n.*this one looks something up"):
        assert catalog.names() == ()


def test_threads_that_look_at_once_see_all_of_it(catalog: Catalog, install: Install) -> None:
    install("shared", table(**{f"name{i}": "functools:partial" for i in range(50)}))
    barrier = threading.Barrier(8)
    found: list[tuple[str, ...]] = []

    def look() -> None:
        barrier.wait()
        found.append(catalog.names())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(names) for names in found] == [50] * 8


def test_register_is_a_function_and_a_decorator() -> None:
    @liftcore.register("transform", "registered_here")
    def mine(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return f

    assert liftcore.registered_here is mine
    assert "registered_here" in dir(liftcore)
    registry.transforms.remove("registered_here")
    assert liftcore.register("object", "registered_here", 3) == 3
    assert liftcore.registered_here == 3
    registry.objects.remove("registered_here")
    assert not hasattr(liftcore, "registered_here")
    with pytest.raises(RegistryError, match="is not callable"):
        liftcore.register("transform", "nothing", None)


def test_built_in_plugins_come_through_the_entry_point() -> None:
    provider = registry.transforms.provider("vmap")
    assert provider is not None
    assert (provider.distribution, provider.table) == ("liftcore", "liftcore_plugins")


def test_every_built_in_entry_loads() -> None:
    rows = importlib.import_module("liftcore_plugins").TABLE
    loaded = {(kind, name): registry.CATALOG[kind].get(name) for kind, name in rows}
    assert all(value is not None for value in loaded.values())
    assert set(registry.cases.names()) == set(registry.transforms.names())
    assert set(registry.family_cases.names()) == set(registry.families.names())
