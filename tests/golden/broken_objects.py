"""Cases about objects: shared, captured, written, carried, and static values among them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore as lift
from liftcore import Carry
from liftcore.protocol import Family, Reference
from tests.golden.broken import Programs, broken
from tests.models import Affine, Config, Counter, Dropout, Net, weights

XS = jnp.arange(1.0, 4.0)
CARRIED = lift.StateAxes({"batch_stat": Carry, ...: None})


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


@broken
def broadcast_and_written_in_a_vmap() -> Programs:
    def forward(model, x):
        return model(x)

    model, stacked = Net(), lift.stack([Net() for _ in range(3)])
    axes = lift.StateAxes({"batch_stat": 0, ...: None})
    stacked.head.value, stacked.bn.scale.value = model.head.value, model.bn.scale.value
    yield lambda: lift.vmap(forward, in_axes=(None, 0))(model, XS)
    yield lambda: lift.vmap(forward, in_axes=(axes, 0))(stacked, XS)


@broken
def broadcast_and_written_in_a_scan() -> Programs:
    def step(counter, x):
        return counter.add(x)

    counter = Counter()
    yield lambda: lift.scan(step, in_axes=(None, 0), out_axes=0)(counter, XS)
    yield lambda: lift.scan(step, in_axes=(CARRIED, 0), out_axes=0)(counter, XS)


@broken
def broadcast_and_restructured_in_a_scan() -> Programs:
    def step(counter, x):
        counter.extra = lift.Variable(x)

    yield lambda: lift.scan(step, in_axes=(None, 0), out_axes=0)(Counter(), XS)
    yield lambda: lift.scan(step, in_axes=(0, 0), out_axes=0)(Counter(XS), XS)


@broken
def a_static_value_of_a_broadcast_module_changed_in_a_scan() -> Programs:
    def step(counter, x):
        counter.flag = True

    counter = Counter()
    counter.flag = False
    yield lambda: lift.scan(step, in_axes=(None, 0), out_axes=0)(counter, XS)


@broken
def a_carry_with_another_structure() -> Programs:
    def step(counter, x):
        counter.extra = lift.Variable(x)
        return counter, None

    counter = Counter()
    yield lambda: lift.scan(step, counter, XS)
    counter.extra = lift.Variable(XS[0])
    yield lambda: lift.scan(step, counter, XS)


@broken
def a_carry_with_another_static_value() -> Programs:
    def step(counter, x):
        counter.flag = True
        return counter, None

    counter = Counter()
    counter.flag = False
    yield lambda: lift.scan(step, counter, XS)
    counter.flag = True
    yield lambda: lift.scan(step, counter, XS)


@broken
def a_carry_with_other_metadata() -> Programs:
    def step(counter, x):
        counter.count.set_metadata(note="new")
        return counter, None

    yield lambda: lift.scan(step, Counter(), XS)


@broken
def a_carry_that_shares_otherwise() -> Programs:
    def step(pair, x):
        return (pair[0], pair[0]), None

    yield lambda: lift.scan(step, (Counter(), Counter()), XS)
    yield lambda: lift.scan(lambda pair, x: (pair, None), (Counter(), Counter()), XS)


@broken
def a_carry_of_another_type() -> Programs:
    def step(counter, x):
        counter.count.value = (counter.count.value + x).astype(jnp.int32)
        return counter, None

    def mended(counter, x):
        counter.count.value = (counter.count.value + x).astype(jnp.int32).astype(jnp.float32)
        return counter, None

    yield lambda: lift.scan(step, Counter(np.float32(0)), XS)
    yield lambda: lift.scan(mended, Counter(np.float32(0)), XS)
    yield lambda: lift.scan(step, Counter(np.int32(0)), XS)


@broken
def a_carry_of_another_shape() -> Programs:
    def step(carry, x):
        return {"h": jnp.append(carry["h"], x)}, None

    yield lambda: lift.scan(step, {"h": jnp.zeros(2)}, XS)


@broken
def a_variable_that_a_carried_kind_did_not_have() -> Programs:
    def step(model, x):
        model.total = lift.BatchStat(x)

    model = Affine(*weights())
    model.counter = Counter()
    yield lambda: lift.scan(step, in_axes=(CARRIED, 0), out_axes=0)(model, XS)
    model.total = lift.BatchStat(XS[0])


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


@broken
def a_write_that_plain_jax_around_would_lose() -> Programs:
    counter = Counter()

    def step(counter, x):
        return counter.add(x)

    yield lambda: jax.vmap(lambda x: lift.jit(step)(counter, x))(XS)
    yield lambda: lift.scan(step, in_axes=(CARRIED, 0), out_axes=0)(counter, XS)


@broken
def a_write_under_plain_jax() -> Programs:
    counter = Counter()
    yield lambda: jax.jit(lambda x: counter.add(x))(1.0)  # no lifted function is running
    yield lambda: lift.jit(lambda counter, x: counter.add(x))(counter, 1.0)


@broken
def a_mapped_scalar_key() -> Programs:
    def forward(model, x):
        return model(x)

    model = Dropout()
    yield lambda: lift.vmap(forward)(model, XS)

    def split():
        with lift.split_rngs(model, splits=3):
            return lift.vmap(forward)(model, XS)

    yield split


@broken
def equal_numbers_in_every_lane() -> Programs:
    def forward(model, x):
        return model(x)

    model = Dropout()
    yield lambda: lift.vmap(forward, in_axes=(None, 0))(model, XS)

    def split():
        with lift.split_rngs(model, splits=3):
            return lift.vmap(forward, in_axes=(lift.StateAxes({"rng": 0, ...: None}), 0))(model, XS)

    yield split
    yield lambda: lift.vmap(forward, in_axes=(lift.StateAxes({"rng": None, ...: None}), 0))(model, XS)


@broken
def a_compiled_program_called_with_another_structure() -> Programs:
    def step(counter, x):
        return counter.add(x)

    jitted = lift.jit(step)
    compiled = jitted.lower(Counter(), 1.0).compile()
    other = Counter()
    other.config = Config()
    yield lambda: compiled(other, 1.0)
    yield lambda: jitted(other, 1.0)
    yield lambda: jitted.lower(other, 1.0).compile()(other, 1.0)
