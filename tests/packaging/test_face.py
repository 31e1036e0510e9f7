"""The face: what `import liftcore` loads, and the names that it shows."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import liftcore
from liftcore import registry
from liftcore_plugins import TABLE

PUBLIC = ("transform", "lift", "object")


def fresh(code: str, where: Path) -> Any:
    """What a new interpreter, elsewhere and with warnings as errors, prints as JSON."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ROOTS = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


@pytest.mark.parametrize(
    ("code", "plugins"),
    [
        ("import liftcore", False),
        ("import liftcore as lift; dir(lift)", True),
        ("import liftcore as lift; lift.vmap", True),
        ("import liftcore as lift; m = lift.Module(); m.w = lift.Param(1.0); lift.jit(lambda m: m.w + 1)(m)", True),
    ],
)
def test_no_model_library_is_loaded_before_one_of_its_objects_is_met(code: str, plugins: bool, tmp_path: Path) -> None:
    loaded = set(fresh(f"{code}\n{ROOTS}", tmp_path))
    assert "jax" in loaded
    assert not loaded & {"equinox", "flax", "haiku", "optax"}
    assert ("liftcore_plugins" in loaded) is plugins


def test_looking_at_the_names_loads_no_plugin(tmp_path: Path) -> None:
    code = "import json, sys, liftcore; dir(liftcore); print(json.dumps([n for n in sys.modules if 'liftcore_p' in n]))"
    assert fresh(code, tmp_path) == ["liftcore_plugins"]


def test_names_declared_to_type_checkers_are_those_of_the_table() -> None:
    tree = ast.parse(Path(liftcore.__file__).read_text(encoding="utf-8"))
    declared = {
        alias.asname: f"{node.module}:{alias.name}"
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == {name: target for (kind, name), target in TABLE.items() if kind in PUBLIC}


def test_the_public_kinds_are_one_flat_namespace() -> None:
    names = [name for kind, name in TABLE if kind in PUBLIC]
    assert len(set(names)) == len(names)
    assert set(names) | set(liftcore.__all__) <= set(dir(liftcore))
    assert all(getattr(liftcore, name) is registry.CATALOG.get(name) for name in names)


def test_an_unknown_name_is_an_attribute_error_with_a_way_out() -> None:
    with pytest.raises(AttributeError, match=r"Did you mean vmap"):
        liftcore.vmapp  # noqa: B018
    assert not hasattr(liftcore, "__wrapped__")


def test_everything_exported_is_there() -> None:
    assert all(hasattr(liftcore, name) for name in liftcore.__all__)
    assert liftcore.__all__ == sorted(liftcore.__all__)
