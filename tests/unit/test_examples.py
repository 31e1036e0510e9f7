"""The examples run, learn something, and save a plot; small settings, so that this is quick."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import liftcore as lift

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example of that name, imported as when it is run: with its own folder on the path."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(request.param)


def is_plot(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("example", ["digits"], indirect=True)
@pytest.mark.parametrize("family", ["objects", "equinox"])
def test_one_training_step_serves_both_families(
    example: ModuleType, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.png"
    accuracy = example.main(["--family", family, "--epochs", "3", "--batch", "128", "--out", str(out)])
    assert 0.85 < accuracy <= 1
    assert is_plot(out)
    printed = capsys.readouterr().out
    assert re.search(rf"family: +{family}, \d+ weights", printed)
    assert f"test:     {accuracy:.2%} of 360 images" in printed


@pytest.mark.parametrize("example", ["digits"], indirect=True)
@pytest.mark.parametrize("family", ["objects", "equinox"])
def test_a_step_changes_weights_statistics_and_streams(example: ModuleType, family: str) -> None:
    model = example.FAMILIES[family](0)
    optimizer = example.optax.sgd(0.1)
    before = lift.state(model)
    images, labels = np.ones((4, 8, 8), np.float32), np.arange(4)
    moments = optimizer.init(lift.state(model, "param"))
    model, _, _ = example.train_step(model, moments, optimizer, images, labels)
    pairs = jax.tree.map(lambda old, new: bool((old != new).any()), before, lift.state(model))
    rest = [path for path, changed in jax.tree.leaves_with_path(pairs) if not changed]
    # The key of a stream stays, and its count goes on; nothing below a normalisation needs its bias.
    assert all("key" in jax.tree_util.keystr(path) or "bias" in jax.tree_util.keystr(path) for path in rest)
    assert example.predict(model, images).shape == (4,)


@pytest.mark.parametrize("example", ["ensemble"], indirect=True)
def test_members_share_statistics_and_have_their_own_weights(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = example.make_members(jax.random.split(jax.random.key(0), 3))
    assert members.head.kernel.shape == (3, 64, 10)
    assert members.norms[0].mean.shape == (64,)
    out = tmp_path / "ensemble.png"
    gain = example.main(["--members", "3", "--images", "200", "--epochs", "10", "--out", str(out)])
    assert is_plot(out)
    assert f"a gain of {100 * gain:.2f} points on 1597 test images" in capsys.readouterr().out


@pytest.mark.parametrize("example", ["ensemble"], indirect=True)
def test_calibration_compares_confidence_with_accuracy(example: ModuleType) -> None:
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65], [0.4, 0.6]])
    found = example.calibrate(probabilities, np.array([0, 1, 1, 1]))
    np.testing.assert_allclose(found.confidence, [0.625, 0.95])
    np.testing.assert_allclose(found.accuracy, [1, 0.5])
    np.testing.assert_allclose(found.error(), 0.5 * 0.375 + 0.5 * 0.45)


@pytest.mark.parametrize("example", ["deep"], indirect=True)
def test_all_ways_through_the_layers_are_one_function(example: ModuleType) -> None:
    images, labels = np.linspace(0, 1, 5 * 64, dtype=np.float32).reshape(5, 8, 8), np.arange(5)
    losses = [
        float(lift.jit(example.loss_fn)(example.make(3, 8, scan=scan, remat=remat, seed=0), images, labels))
        for scan in (False, True)
        for remat in (False, True)
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


@pytest.mark.parametrize("example", ["deep"], indirect=True)
def test_the_cost_of_every_way_is_told(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep.png"
    costs = example.main(["--layers", "3", "--width", "16", "--epochs", "1", "--batch", "128", "--out", str(out)])
    assert is_plot(out)
    printed = capsys.readouterr().out
    assert list(costs) == ["loop", "loop + remat", "scan", "scan + remat"]
    assert all(re.search(rf"^{re.escape(name)} +[\d.]+ +[\d.]+ +[\d.]+$", printed, re.MULTILINE) for name in costs)
    assert costs["scan + remat"].memory < costs["scan"].memory
