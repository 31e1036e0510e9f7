"""Plans of a family that keeps notes in a dictionary, tells nothing, and has cells that may refuse a write."""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import pytest

import liftcore as lift
from liftcore.errors import WriteError
from liftcore.protocol import Family, Node, Notes, Reference


class Cell:
    def __init__(self, value: Any, frozen: bool = False) -> None:
        self.value = value
        self.frozen = frozen


class Layer:
    def __init__(self, **entries: Any) -> None:
        vars(self).update(entries)


WORDS = {frozen: types.MappingProxyType({"frozen": frozen}) for frozen in (False, True)}
asked: list[Cell] = []


def check_write(cell: Cell) -> None:
    asked.append(cell)
    if cell.frozen:
        raise WriteError("write to a cell", found=["it is frozen"])


def set_metadata(cell: Cell, words: Mapping[str, Any]) -> None:
    cell.frozen = words["frozen"]


def make(cls: type[Cell], words: Mapping[str, Any]) -> Cell:
    cell = object.__new__(cls)
    set_metadata(cell, words)
    return cell


def fill(layer: Layer, entries: Mapping[str, Any]) -> None:
    new = dict(entries)
    vars(layer).clear()
    vars(layer).update(new)


KEPT: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
NOTES = Notes(get=KEPT.get, set=KEPT.__setitem__)
CELL = Reference(
    read=operator.attrgetter("value"),
    write=lambda cell, value: setattr(cell, "value", value),
    make=make,
    metadata=lambda cell: WORDS[cell.frozen],
    set_metadata=set_metadata,
    check_write=check_write,
    notes=NOTES,
)
NODE = Node(items=vars, make=object.__new__, fill=fill, notes=NOTES)
KINDS: Mapping[type, Reference | Node] = {Cell: CELL, Layer: NODE}


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    with lift.registry.families.temporary("tests", Family("tests", kind=KINDS.get)):
        yield


def _planned(lifted: Any) -> tuple[int, int]:
    stats = lifted.stats()
    return stats.calls, stats.planned


def test_a_cell_that_refuses_writes_is_read_by_plans() -> None:
    layer = Layer(kernel=Cell(jnp.ones(())), scale=Cell(jnp.full((), 2.0), frozen=True))

    @lift.jit
    def step(layer: Layer) -> Any:
        layer.kernel.value = layer.kernel.value + layer.scale.value
        return layer.kernel.value

    assert [float(step(layer)) for _ in range(5)] == [3.0, 5.0, 7.0, 9.0, 11.0]
    assert _planned(step) == (5, 3)
    assert float(layer.scale.value) == 2.0


def test_a_planned_call_that_writes_a_frozen_cell_is_refused_and_writes_nothing() -> None:
    layer = Layer(kernel=Cell(jnp.ones(())), scale=Cell(jnp.ones(())))

    @lift.jit
    def step(layer: Layer) -> None:
        layer.kernel.value = layer.kernel.value * 2
        layer.scale.value = layer.scale.value * 2

    for _ in range(4):
        step(layer)
    assert _planned(step) == (4, 2)
    layer.scale.frozen = True
    for _ in range(4):
        with pytest.raises(WriteError, match="it is frozen"):
            step(layer)
        assert float(layer.kernel.value) == float(layer.scale.value) == 16.0
    layer.scale.frozen = False
    step(layer)
    assert float(layer.kernel.value) == float(layer.scale.value) == 32.0


def test_cells_that_may_all_be_written_are_not_asked_again() -> None:
    layer = Layer(kernel=Cell(jnp.ones(())))

    @lift.jit
    def step(layer: Layer) -> None:
        layer.kernel.value = layer.kernel.value * 2

    for _ in range(4):
        step(layer)
    asked.clear()
    step(layer)
    assert _planned(step) == (5, 3)
    assert not asked


def test_notes_die_with_the_object() -> None:
    layer = Layer(kernel=Cell(jnp.ones(())))
    step = lift.jit(lambda layer: layer.kernel.value + 1)
    for _ in range(4):
        step(layer)
    assert layer in KEPT
    before, alive = len(KEPT), weakref.ref(layer)
    del layer
    assert alive() is None
    assert len(KEPT) < before


@pytest.mark.parametrize("change", ["swap", "add", "remove", "reorder", "class", "freeze", "static"])
def test_every_change_is_seen_although_nothing_tells(change: str) -> None:
    class Other(Layer):
        pass

    layer = Layer(name="a", kernel=Cell(jnp.ones(())), bias=Cell(jnp.zeros(())))

    def described(layer: Layer) -> tuple[Any, str]:
        cells = [value for value in vars(layer).values() if isinstance(value, Cell)]
        total = sum(cell.value for cell in cells)
        return total, f"{type(layer).__name__} {list(vars(layer))} {layer.name} {[cell.frozen for cell in cells]}"

    step = lift.jit(described)
    for _ in range(4):
        step(layer)
    assert _planned(step) == (4, 2)
    match change:
        case "swap":
            layer.kernel = Cell(jnp.full((), 7.0))
        case "add":
            layer.more = Cell(jnp.full((), 7.0))
        case "remove":
            del layer.bias
        case "reorder":
            layer.kernel = vars(layer).pop("kernel")
        case "class":
            layer.__class__ = Other
        case "freeze":
            layer.bias.frozen = True
        case "static":
            layer.name = "b"
    want = described(layer)
    if change == "class":
        with lift.registry.families.temporary("tests", Family("tests", kind={**KINDS, Other: NODE}.get)):
            got = step(layer)
    else:
        got = step(layer)
    assert float(got[0]) == float(want[0])
    assert got[1] == want[1]
