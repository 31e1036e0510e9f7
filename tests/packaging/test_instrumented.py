"""The suite itself: both packages run under typeguard."""

from __future__ import annotations

import importlib
import sys

import pytest
import typeguard

from liftcore import paths, registry
from liftcore_plugins import TABLE


def test_a_wrong_type_is_noticed_in_both_packages() -> None:
    with pytest.raises(typeguard.TypeCheckError, match='argument "root"'):
        paths.text(3, ())  # type: ignore[arg-type]
    with pytest.raises(typeguard.TypeCheckError, match='argument "name"'):
        registry.families.get(b"pytree")  # type: ignore[arg-type]


def test_every_module_of_ours_is_instrumented() -> None:
    for target in TABLE.values():
        importlib.import_module(target.partition(":")[0])
    ours = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in ("liftcore", "liftcore_plugins")
    }
    loaders = {name: type(module.__spec__.loader).__name__ for name, module in ours.items() if module.__spec__}
    assert set(loaders.values()) == {"TypeguardLoader"}, loaders
