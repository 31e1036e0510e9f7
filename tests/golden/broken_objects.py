"""Cases about objects: shared, captured, and static values among them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import liftcore as lift
from liftcore.protocol import Family, Reference
from tests.golden.broken import Programs, broken
from tests.models import Affine, Counter, weights

XS = jnp.arange(1.0, 4.0)


def square() -> Counter:
    return Counter(np.zeros((3, 3)))


@broken
def shared_by_two_arguments_with_two_axes() -> Programs:
    def both(one, other):
        return one.count + other.count

    counter = square()
    yield lambda: lift.vmap(both, in_axes=(0, 1))(counter, counter)
    yield lambda: lift.vmap(both, in_axes=(0, 0))(counter, counter)
    yield lambda: lift.vmap(both, in_axes=(0, 1))(counter, lift.clone(counter))


@broken
def returned_under_another_axis() -> Programs:
    def pick(model):
        return {"picked": model}

    counter = square()
    yield lambda: lift.vmap(pick, in_axes=0, out_axes=1)(counter)
    yield lambda: lift.vmap(pick, in_axes=0, out_axes=0)(counter)
    yield lambda: lift.vmap(lambda model: pick(lift.clone(model)), in_axes=0, out_axes=1)(counter)


@broken
def reached_through_a_donated_and_a_kept_argument() -> Programs:
    def step(model, bias):
        return model(bias.value)

    model = Affine(*weights())
    yield lambda: lift.jit(step, donate_argnums=0)(model, model.bias)
    yield lambda: lift.jit(step, donate_argnums=(0, 1))(model, model.bias)
    yield lambda: lift.jit(step, donate_argnums=0)(model, lift.clone(model.bias))


@broken
def shared_by_a_differentiated_and_another_argument() -> Programs:
    def loss(model, bias):
        return model(bias.value).sum()

    model = Affine(*weights())
    yield lambda: lift.grad(loss)(model, model.bias)
    yield lambda: lift.grad(loss, argnums=(0, 1))(model, model.bias)
    yield lambda: lift.grad(loss)(model, lift.clone(model.bias))


@broken
def carried_and_scanned() -> Programs:
    def step(carry, layer):
        return carry, carry.count + layer.count.sum()

    counter = square()
    yield lambda: lift.scan(step, counter, counter)
    yield lambda: lift.scan(step, counter, lift.clone(counter))


@broken
def captured_and_written() -> Programs:
    counter = Counter()

    def step(x):
        return counter.add(x)

    def passed(counter, x):
        return counter.add(x)

    yield lambda: lift.jit(step)(1.0)
    yield lambda: lift.jit(passed)(counter, 1.0)


@broken
def captured_and_returned() -> Programs:
    counter = Counter()

    def step(x):
        return [counter]

    yield lambda: lift.remat(step)(1.0)
    yield lambda: lift.remat(lambda counter, x: [counter])(counter, 1.0)


@broken
def captured_and_passed() -> Programs:
    counter = Counter(np.zeros(3))

    def step(model):
        return model.count + counter.count

    yield lambda: lift.vmap(step)(counter)
    yield lambda: lift.vmap(lambda model: model.count + model.count)(counter)


class Cell:
    """A mutable cell of a stranger's, which does not tell when it is read."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def set(self, value: Any) -> None:
        self.value = value


CELLS = Family(
    name="tests",
    kind=lambda cls: (
        Reference(read=lambda cell: cell.value, write=Cell.set, make=lambda cls, metadata: cls())
        if issubclass(cls, Cell)
        else None
    ),
)


@broken
def captured_and_passed_in_a_family_that_does_not_report_reads() -> Programs:
    cell = Cell(jnp.ones(3))

    def step(passed):
        return passed.value + cell.value

    def within(f):
        with lift.registry.families.temporary("tests", CELLS):
            f()

    yield lambda: within(lambda: lift.jit(step)(cell))
    yield lambda: within(lambda: lift.jit(lambda passed: passed.value + passed.value)(cell))


@dataclasses.dataclass(frozen=True)
class Table:
    """A config that holds an array."""

    values: Any


@broken
def an_array_in_a_static_value() -> Programs:
    def step(model):
        return model.count.value

    counter = Counter()
    counter.table = Table(jnp.ones(3))
    yield lambda: lift.jit(step)(counter)
    counter.table = jnp.ones(3)
    yield lambda: lift.jit(step)(counter)


@broken
def a_traced_array_in_a_static_value() -> Programs:
    def step(model, x):
        model.counter.table = Table(x * 2)

    def mended(model, x):
        model.counter.table = x * 2

    model = lift.Module()
    model.counter = Counter()
    yield lambda: lift.jit(step)(model, XS)
    yield lambda: lift.jit(mended)(model, XS)


@broken
def a_traced_array_in_metadata() -> Programs:
    def step(model, x):
        model.count.set_metadata(scale=x)

    yield lambda: lift.vmap(step, in_axes=(None, 0))(Counter(), XS)


@broken
def a_traced_array_in_a_returned_static_value() -> Programs:
    def step(x):
        return {"table": Table(x)}

    yield lambda: lift.jit(step)(XS)
