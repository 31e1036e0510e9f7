"""Cases about state: written where it may not be, carried otherwise than it came in, and random streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import liftcore as lift
from liftcore import Carry
from tests.golden.broken import Programs, broken
from tests.models import Affine, Config, Counter, Dropout, Net, weights

XS = jnp.arange(1.0, 4.0)
CARRIED = lift.StateAxes({"batch_stat": Carry, ...: None})


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
