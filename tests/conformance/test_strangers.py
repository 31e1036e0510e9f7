"""A stranger's plugins enter the matrix as the built-in ones do, and what is wrong with them is found there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore as lift
from liftcore import registry
from liftcore.protocol import Case, Family, FamilyCase, LiftSpec, LiftType, Node, Site, Spec
from tests.conformance.matrix import Cell, Interrupted, cells


class Bag:
    """A stranger's model: keeps its arrays in a list, by position."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = list(arrays)
        self.scale = 0.5


def _apply(model: Bag, x: Any) -> Any:
    kernel, bias = model.arrays
    return jnp.sin(x @ kernel * model.scale + bias)


def _write(model: Bag, arrays: Mapping[str, Any]) -> Bag:
    model.arrays[:] = [arrays["kernel"], arrays["bias"]]
    return model


def _fill(model: Bag, contents: Mapping[str, Any]) -> None:
    vars(model).clear()
    vars(model).update(contents)


BAG = Family(
    name="tests",
    kind=lambda cls: Node(items=vars, make=object.__new__, fill=_fill) if cls is Bag else None,
)
BAG_CASE = FamilyCase(
    make=lambda arrays: Bag(arrays["kernel"], arrays["bias"]),
    apply=_apply,
    arrays=lambda model: dict(zip(("kernel", "bias"), model.arrays, strict=True)),
    write=_write,
)


class Kernels(LiftType):
    """A stranger's lift type: maps what has rows and columns, and broadcasts the rest."""

    def values(self, transform: str) -> tuple[int, None]:
        return (0, None)

    def resolve(self, site: Site) -> int | None:
        return 0 if site.value.ndim > 1 else None


class Biases(Kernels):
    """The same mistaken: it maps everything."""

    def resolve(self, site: Site) -> int:
        return 0


def doubled(f: Any) -> Any:
    """A stranger's transform: the result twice."""

    def run(program: Any) -> Any:
        (pure,) = program.pures
        return pure

    def finish(done: Any) -> Any:
        y, model = done.merge()[1]
        return (y, y), model

    return lift.lift(f, LiftSpec("doubled", run, spec=_kept, finish=finish))


def forgetful(f: Any) -> Any:
    """The same mistaken: what f writes is lost."""

    def run(program: Any) -> Any:
        (pure,) = program.pures
        return pure

    def finish(done: Any) -> Any:
        y, model = done.merge(write=False)[1]
        return (y, y), model

    return lift.lift(f, LiftSpec("doubled", run, spec=_kept, finish=finish))


def _kept(spelling: Any, site: Site | None) -> Spec:
    return Spec("kept", "kept")


def _twice(f: Any, picked: tuple[str, ...]) -> Any:
    def transformed(arrays: Any, x: Any) -> Any:
        y, after = f(arrays, x)
        return (y, y), after

    return transformed


@contextlib.contextmanager
def strangers() -> Iterator[None]:
    """Registers all of the above."""
    mapped = registry.cases.get("vmap")
    with contextlib.ExitStack() as stack:
        stack.enter_context(registry.families.temporary("tests", BAG))
        stack.enter_context(registry.family_cases.temporary("tests", BAG_CASE))
        stack.enter_context(registry.transforms.temporary("doubled", doubled))
        stack.enter_context(
            registry.cases.temporary("doubled", Case(lift=lambda f, prefix: lift.doubled(f), plain=_twice))
        )
        stack.enter_context(registry.lifts.temporary("Kernels", Kernels))
        own = dataclasses.replace(mapped, lift_types={"Kernels": lambda cls: cls()})
        stack.enter_context(registry.cases.temporary("Kernels", own))
        yield


def _new() -> list[Cell]:
    before = set(cells())
    with strangers():
        return [cell for cell in cells() if cell not in before]


def _check(cell: Cell) -> None:
    cell.check_values()
    cell.check_values(lift.jit)
    cell.check_gradients()
    cell.check_interrupted()


def test_strangers_enter_the_matrix_in_all_combinations() -> None:
    families = ["equinox", "liftcore_plugins", "pytree", "tests"]
    found = _new()
    assert {cell.family for cell in found if cell.case == "doubled"} == set(families)
    assert {cell.family for cell in found if cell.lift_type == "Kernels"} == set(families)
    assert {(cell.case, cell.lift_type) for cell in found if cell.family == "tests"} >= {
        ("grad", "DiffState"),
        ("jit", None),
        ("scan", "StateAxes"),
        ("Kernels", "Kernels"),
    }
    assert not any("tests" in str(cell) or "doubled" in str(cell) for cell in cells())


@pytest.mark.parametrize("cell", _new(), ids=str)
def test_a_strangers_cell(cell: Cell) -> None:
    with strangers():
        _check(cell)


def test_a_transform_that_loses_updates_fails() -> None:
    case = Case(lift=lambda f, prefix: forgetful(f), plain=_twice)
    with strangers(), registry.cases.temporary("doubled", case):
        Cell("doubled", None, "pytree").check_values()
        with pytest.raises(AssertionError, match="model afterwards"):
            Cell("doubled", None, "liftcore_plugins").check_values()


def test_a_transform_with_other_values_fails() -> None:
    case = Case(lift=lambda f, prefix: lift.doubled(f), plain=lambda f, picked: f)
    with strangers(), registry.cases.temporary("doubled", case), pytest.raises(AssertionError, match="result"):
        Cell("doubled", None, "equinox").check_values()


def test_a_transform_with_other_gradients_fails() -> None:
    def stopped(f: Any, prefix: Any) -> Any:
        return lift.doubled(lambda model, x: jax.lax.stop_gradient(f(model, x)[:1]) + f(model, x)[1:])

    with strangers(), registry.cases.temporary("doubled", Case(lift=stopped, plain=_twice)):
        Cell("doubled", None, "pytree").check_values()
        with pytest.raises(AssertionError, match="gradient"):
            Cell("doubled", None, "pytree").check_gradients()


def test_a_lift_type_that_picks_too_much_fails() -> None:
    with strangers(), registry.lifts.temporary("Kernels", Biases), pytest.raises(lift.errors.AxisError):
        Cell("Kernels", "Kernels", "tests").check_values()


def test_a_family_that_loses_contents_fails() -> None:
    class Leaky(Bag):
        pass

    def fill(model: Bag, contents: Mapping[str, Any]) -> None:
        _fill(model, {**contents, "scale": 1.0})

    family = dataclasses.replace(BAG, kind=lambda cls: Node(vars, object.__new__, fill) if cls is Leaky else None)
    case = dataclasses.replace(BAG_CASE, make=lambda arrays: Leaky(arrays["kernel"], arrays["bias"]))
    with (
        registry.families.temporary("tests", family),
        registry.family_cases.temporary("tests", case),
        pytest.raises(AssertionError, match="result"),
    ):
        Cell("jit", None, "tests").check_values()


def test_a_transform_that_swallows_errors_fails() -> None:
    def calm(f: Any, prefix: Any) -> Any:
        def quiet(model: Any, x: Any) -> Any:
            with contextlib.suppress(Interrupted):
                return f(model, x)
            return x, model

        return lift.doubled(quiet)

    with (
        strangers(),
        registry.cases.temporary("doubled", Case(lift=calm, plain=_twice)),
        pytest.raises(AssertionError, match="lost"),
    ):
        Cell("doubled", None, "liftcore_plugins").check_interrupted()
