"""State that a lifted function writes: carried out, stacked, carried on, or refused by name; never lost."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import WriteError
from tests.models import Affine, BatchNorm, Counter, Net, both_ways, leaves, weights

XS = jnp.arange(1.0, 5.0)
CARRIED = lift.StateAxes({lift.BatchStat: Carry, ...: None})


def counters(*starts):
    return lift.stack([Counter(start) for start in starts])


@both_ways
@pytest.mark.parametrize("in_axes", [(None, Carry, 0), (lift.StateAxes({...: None}), Carry, 0)])
def test_a_broadcast_counter_written_in_a_scan_is_an_error_that_names_it(how, in_axes):
    def step(counter, carry, x):
        return carry, counter.add(x)

    counter = Counter()
    before = counter.count.value
    with pytest.raises(WriteError, match=r"scan of step: counter\.count, a BatchStat, was written"):
        how(lambda c: lift.scan(step, in_axes=in_axes)(c, 0.0, XS))(counter)
    assert counter.count.value is before


@both_ways
def test_a_counter_of_a_carried_kind_is_handed_from_step_to_step(how):
    counter = Counter()
    loop = how(lambda c: lift.scan(lambda c, i, x: (i + 1, c.add(x)), in_axes=(CARRIED, Carry, 0))(c, 0, XS))
    steps, ys = loop(counter)
    np.testing.assert_array_equal(ys, [1, 3, 6, 10])
    assert (int(steps), float(counter.count.value)) == (4, 10.0)


@both_ways
def test_a_counter_in_the_carry_comes_back_as_the_same_object(how):
    counter = Counter()

    def program(c):
        last, ys = lift.scan(lambda c, x: (c, c.add(x)), c, XS)
        return last, ys, jnp.asarray(last is c)

    last, ys, same = how(program)(counter)
    assert last is counter
    assert bool(same)
    np.testing.assert_array_equal(ys, [1, 3, 6, 10])
    assert float(counter.count.value) == 10


@both_ways
def test_carried_scanned_and_broadcast_state_in_one_model(how):
    class Deep(lift.Module):
        def __init__(self):
            self.total = Counter()
            self.layers = counters(10.0, 20.0, 30.0)
            self.scale = lift.Param(jnp.asarray(2.0))

    def step(model, x):
        model.layers.add(x)
        return model.total.add(model.scale.value * model.layers.count.value)

    axes = lift.StateAxes([(lift.PathContains("total"), Carry), (lift.PathContains("layers"), 0), (..., None)])
    model = Deep()
    scale = model.scale.value
    ys = how(lambda m: lift.scan(step, in_axes=(axes, 0), out_axes=0)(m, XS[:3]))(model)
    np.testing.assert_array_equal(ys, [22, 66, 132])
    np.testing.assert_array_equal(model.layers.count.value, [11, 22, 33])
    assert float(model.total.count.value) == 132
    assert model.scale.value is scale


@both_ways
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scanned_state_goes_back_to_the_axis_it_came_from(how, axis):
    counter = Counter()
    counter.count.value = jnp.arange(6.0).reshape(2, 3)
    expected = counter.count.value + jnp.expand_dims(XS[: (2, 3)[axis]], 1 - axis % 2)
    how(lambda c: lift.scan(lambda c, x: c.add(x), in_axes=(axis, 0), out_axes=0)(c, XS[: (2, 3)[axis]]))(counter)
    np.testing.assert_array_equal(counter.count.value, expected)


@both_ways
def test_a_reversed_scan_carries_from_the_last_step_to_the_first(how):
    counter = Counter()
    _, ys = how(lambda c: lift.scan(lambda c, x: (c, c.add(x)), c, XS, reverse=True))(counter)
    np.testing.assert_array_equal(ys, [10, 9, 7, 4])


@both_ways
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_mapped_reference_is_written_lane_by_lane_in_its_own_axis(how, axis):
    counter = Counter()
    counter.count.value = jnp.arange(6.0).reshape(2, 3)
    lanes = XS[: (2, 3)[axis]]
    expected = counter.count.value + jnp.expand_dims(lanes, 1 - axis % 2)
    ys = how(lambda c, x: lift.vmap(Counter.add, in_axes=(axis, 0), out_axes=axis)(c, x))(counter, lanes)
    np.testing.assert_array_equal(ys, expected)
    np.testing.assert_array_equal(counter.count.value, expected)


@both_ways
def test_a_broadcast_reference_may_be_written_with_one_value_for_all_lanes(how):
    counter = Counter()
    ys = how(lambda c: lift.vmap(lambda c, x: c.add(1.0) + x, in_axes=(None, 0))(c, XS))(counter)
    np.testing.assert_array_equal(ys, XS + 1)
    assert float(counter.count.value) == 1.0


@both_ways
def test_a_broadcast_statistic_written_differently_in_each_lane_is_an_error_that_names_it(how):
    model = Net()
    mean = model.bn.mean.value

    def forward(model, x):
        return model(x)

    with pytest.raises(WriteError, match=r"vmap of forward: model\.bn\.mean.* was written"):
        how(lambda m, x: lift.vmap(forward, in_axes=(None, 0))(m, x))(model, XS)
    assert model.bn.mean.value is mean


@both_ways
def test_a_broadcast_statistic_reduced_over_the_named_axis_is_kept(how):
    bn = BatchNorm("batch")
    ys = how(lambda m, x: lift.vmap(m, axis_name="batch")(x))(bn, XS)
    np.testing.assert_allclose(ys, XS - XS.mean())
    np.testing.assert_allclose(bn.mean.value, 0.5 * XS.mean())


@both_ways
def test_a_broadcast_statistic_reduced_over_both_axes_of_nested_vmaps_is_kept(how):
    bn = BatchNorm(("rows", "columns"))
    xs = jnp.arange(6.0).reshape(2, 3)

    def program(m, xs):
        row = lift.vmap(lambda m, x: m(x), in_axes=(None, 0), axis_name="columns")
        return lift.vmap(row, in_axes=(None, 0), axis_name="rows")(m, xs)

    ys = how(program)(bn, xs)
    np.testing.assert_allclose(ys, xs - xs.mean())
    np.testing.assert_allclose(bn.mean.value, 0.5 * xs.mean())


@both_ways
def test_a_new_variable_hung_on_a_broadcast_module_must_be_the_same_in_every_lane(how):
    counter = Counter()

    def hang(counter, x):
        counter.last = lift.Variable(x)

    with pytest.raises(WriteError, match=r"counter\.last"):
        how(lambda c: lift.vmap(hang, in_axes=(None, 0))(c, XS))(counter)
    assert not hasattr(counter, "last")
    how(lambda c: lift.vmap(lambda c, x: hang(c, 5.0), in_axes=(None, 0))(c, XS))(counter)
    assert float(counter.last.value) == 5.0


@both_ways
def test_a_new_variable_hung_on_a_mapped_module_gets_the_module_s_axis(how):
    counter = counters(0.0, 0.0, 0.0)

    def hang(counter, x):
        counter.last = lift.Variable(x * jnp.ones(2))

    how(lambda c: lift.vmap(hang)(c, XS[:3]))(counter)
    np.testing.assert_array_equal(counter.last.value, XS[:3, None] * jnp.ones(2))


@both_ways
@pytest.mark.parametrize("transform", [lift.jit, lift.remat], ids=["jit", "remat"])
def test_state_comes_back_as_from_a_plain_call(how, transform):
    lifted, plain = Net(), Net()
    for x in (XS, XS * 3):
        np.testing.assert_allclose(how(lambda m, x: transform(lambda m, x: m(x))(m, x))(lifted, x), plain(x))
    np.testing.assert_allclose(lifted.bn.mean.value, plain.bn.mean.value)


@both_ways
def test_state_written_in_a_loss_is_kept_and_written_once(how):
    model = Net()
    grads = how(lambda m: lift.grad(lambda m: (m(XS) ** 2).sum())(m))(model)
    np.testing.assert_allclose(model.bn.mean.value, 0.5 * XS.mean())
    np.testing.assert_allclose(grads["head"], 4 * ((XS - XS.mean()) ** 2).sum(), rtol=1e-6)


@both_ways
def test_a_rematerialised_loss_writes_its_state_once(how):
    counter, w = Counter(), jnp.asarray(3.0)
    loss = lift.value_and_grad(lambda w, c: lift.remat(lambda c: c.add(1.0) * w**2)(c))
    value, gradient = how(lambda w, c: loss(w, c))(w, counter)
    assert (float(value), float(gradient), float(counter.count.value)) == (9.0, 6.0, 1.0)


@both_ways
@pytest.mark.parametrize(
    "program",
    [
        lambda m: lift.jit(lambda m: m(XS[:3]))(m),
        lambda m: lift.remat(lambda m: m(XS[:3]))(m),
        lambda m: lift.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, jnp.ones((2, 3))),
        lambda m: lift.grad(lambda m: m(XS[:3]).sum())(m),
        lambda m: lift.value_and_grad(lambda m: m(XS[:3]).sum(), has_aux=False)(m),
        lambda m: lift.scan(lambda m, x: m(x), in_axes=(None, 0), out_axes=0)(m, jnp.ones((2, 3))),
        lambda m: lift.scan(lambda m, x: (m, m(x)), m, jnp.ones((2, 3)))[1],
    ],
    ids=["jit", "remat", "vmap", "grad", "value_and_grad", "scan broadcast", "scan carry"],
)
def test_a_model_that_is_only_read_keeps_its_very_arrays(how, program):
    model = Affine(*weights())
    before = leaves(model)
    how(program)(model)
    assert all(one is other for one, other in zip(leaves(model), before, strict=True))


@both_ways
def test_a_python_number_in_a_variable_is_data_and_not_static(how):
    traces = []
    counter = lift.Variable(0)

    @lift.jit
    def step(v):
        traces.append(1)
        v.value = v.value + 1

    for _ in range(5):
        how(lambda v: step(v))(counter)
    assert int(counter.value) == 5
    # The number, then the weakly typed array that it became.
    assert len(traces) <= 2


@both_ways
def test_a_dict_in_a_variable_changed_in_place_is_seen(how):
    memory = lift.Cache({"keys": jnp.zeros(2), "index": jnp.asarray(0)})

    def step(memory):
        memory.value["index"] += 1

    how(lambda m: lift.jit(step)(m))(memory)
    how(lambda m: lift.remat(step)(m))(memory)
    assert int(memory.value["index"]) == 2
    np.testing.assert_array_equal(memory.value["keys"], jnp.zeros(2))


@both_ways
def test_equinox_state_goes_through_a_vmapped_batch_norm(how):
    bn, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")
    xs = jax.random.normal(jax.random.key(0), (5, 3))
    expected, after = jax.vmap(bn, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(xs, state)
    bn, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")
    program = how(lambda m, x, s: lift.vmap(m, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, s))
    ys, new = program(bn, xs, state)
    np.testing.assert_allclose(ys, expected, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(new), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
