"""Random streams under lifted transforms: shared numbers only where they are asked for, and streams that go on."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import Carry
from liftcore.errors import AxisError, CaptureError, LiftWarning, WriteError
from tests.models import Dropout, both_ways

ONES = jnp.ones((4, 8))
SPLIT = lift.StateAxes({"rng": 0, ...: None})


def forward(model, x):
    return model(x)


def distinct(rows):
    return len({tuple(np.asarray(row).tolist()) for row in rows})


@both_ways
@pytest.mark.parametrize("axes", [None, lift.StateAxes({...: None}), lift.StateAxes({"param": 0, ...: None})])
def test_a_broadcast_stream_gives_equal_rows_and_warns_by_its_name(axes, how):
    model = Dropout()
    with pytest.warns(LiftWarning, match=r"vmap of forward: model\.rngs\.dropout\.count: stream 'dropout'"):
        ys = how(lambda m, x: lift.vmap(forward, in_axes=(axes, 0))(m, x))(model, ONES)
    assert distinct(ys) == 1
    assert int(model.rngs.dropout.count.value) == 1


@both_ways
@pytest.mark.parametrize("only", ["rng", "dropout", lift.RngKey])
def test_equal_numbers_that_are_asked_for_do_not_warn(only, how):
    model = Dropout()
    axes = lift.StateAxes([(only, None), ("rng_count", None), (..., None)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ys = how(lambda m, x: lift.vmap(forward, in_axes=(axes, 0))(m, x))(model, ONES)
    assert distinct(ys) == 1


@both_ways
def test_a_split_stream_gives_each_lane_its_own_numbers_and_goes_on(how):
    model, outer = Dropout(), Dropout()
    lanes = jax.random.split(outer.rngs.dropout(), 4)

    def program(m, x):
        with lift.split_rngs(m, splits=4):
            return lift.vmap(forward, in_axes=(SPLIT, 0))(m, x)

    ys = how(program)(model, ONES)
    expected = jnp.stack([jax.random.uniform(jax.random.fold_in(lane, 0), (8,)) for lane in lanes])
    np.testing.assert_array_equal(ys, expected)
    assert int(model.rngs.dropout.count.value) == 1
    np.testing.assert_array_equal(model(ONES), outer(ONES))


@both_ways
def test_the_three_spellings_of_splitting_agree(how):
    @lift.split_rngs(splits=4)
    def decorated(m, x):
        return lift.vmap(forward, in_axes=(SPLIT, 0))(m, x)

    def called(m, x):
        backup = lift.split_rngs(m, splits=4)
        ys = lift.vmap(forward, in_axes=(SPLIT, 0))(m, x)
        lift.restore_rngs(backup)
        return ys

    def managed(m, x):
        with lift.split_rngs(m.rngs, splits=4, only="dropout"):
            return lift.vmap(forward, in_axes=(SPLIT, 0))(m, x)

    ys = [how(program)(Dropout(), ONES) for program in (decorated, called, managed)]
    np.testing.assert_array_equal(ys[0], ys[1])
    np.testing.assert_array_equal(ys[0], ys[2])
    assert distinct(ys[0]) == 4


@both_ways
def test_a_stream_split_for_nested_transforms_differs_in_every_lane(how):
    model = Dropout()

    def program(m, x):
        with lift.split_rngs(m, splits=(2, 4)):
            row = lift.vmap(forward, in_axes=(SPLIT, 0))
            return lift.vmap(row, in_axes=(SPLIT, 0))(m, x)

    ys = how(program)(model, jnp.ones((2, 4, 8)))
    assert distinct(ys.reshape(8, 8)) == 8
    assert int(model.rngs.dropout.count.value) == 1


@both_ways
@pytest.mark.parametrize("axes", [0, SPLIT])
def test_a_scalar_key_that_is_mapped_names_the_stream_and_the_way_out(axes, how):
    model = Dropout()
    with pytest.raises(
        AxisError, match=r"vmap of forward: model\.rngs\.dropout\.key.*\n(.|\n)*'dropout'(.|\n)*split_rngs"
    ):
        how(lambda m, x: lift.vmap(forward, in_axes=(axes, 0))(m, x))(model, ONES)
    assert int(model.rngs.dropout.count.value) == 0


@both_ways
def test_a_stream_in_the_carry_of_a_scan_gives_each_step_new_numbers(how):
    model, plain = Dropout(), Dropout()
    last, ys = how(lambda m, x: lift.scan(lambda m, x: (m, m(x)), m, x))(model, ONES)
    np.testing.assert_array_equal(ys, jnp.stack([plain(x) for x in ONES]))
    assert last is model
    assert int(model.rngs.dropout.count.value) == 4
    by_filter = lift.StateAxes({"rng": Carry, ...: None})
    more = how(lambda m, x: lift.scan(forward, in_axes=(by_filter, 0), out_axes=0)(m, x))(model, ONES)
    np.testing.assert_array_equal(more, jnp.stack([plain(x) for x in ONES]))


@both_ways
def test_a_broadcast_stream_in_a_scan_is_an_error_that_names_it(how):
    model = Dropout()
    with pytest.raises(WriteError, match=r"scan of forward: model\.rngs\.dropout\.count"):
        how(lambda m, x: lift.scan(forward, in_axes=(None, 0), out_axes=0)(m, x))(model, ONES)
    assert int(model.rngs.dropout.count.value) == 0


@both_ways
@pytest.mark.parametrize(
    "lifted",
    [
        lambda m, x: lift.jit(forward)(m, x),
        lambda m, x: lift.remat(forward)(m, x),
        lambda m, x: lift.grad(lambda m, x: (lambda y: (y.sum(), y))(m(x)), argnums=1, has_aux=True)(m, x)[1],
    ],
    ids=["jit", "remat", "grad"],
)
def test_draws_are_those_of_plain_calls_and_the_stream_goes_on(lifted, how):
    model, plain = Dropout(), Dropout()
    for _ in range(2):
        np.testing.assert_array_equal(how(lifted)(model, ONES), plain(ONES))
    np.testing.assert_array_equal(model(ONES), plain(ONES))


def test_a_rematerialised_draw_is_the_same_forward_and_backward():
    model = Dropout()

    def loss(x, m):
        return (lift.remat(forward)(m, x) ** 2).sum()

    gradient = lift.grad(loss)(ONES, model)
    mask = Dropout()(ONES)
    np.testing.assert_allclose(gradient, 2 * mask**2, rtol=1e-5)


@both_ways
def test_a_captured_stream_that_is_drawn_from_is_an_error(how):
    model = Dropout()
    with pytest.raises(CaptureError, match=r"jit of <lambda>: model\.rngs\.dropout\.count"):
        how(lambda x: lift.jit(lambda x: model(x))(x))(ONES)
    assert int(model.rngs.dropout.count.value) == 0


@both_ways
def test_an_array_of_keys_passed_as_an_argument_is_mapped_like_any_array(how):
    keys = jax.random.split(jax.random.key(0), 4)
    ys = how(lambda keys: lift.vmap(lambda key: Dropout(key)(ONES[0]))(keys))(keys)
    np.testing.assert_array_equal(ys, jnp.stack([Dropout(key)(ONES[0]) for key in keys]))


def test_an_error_inside_of_a_split_puts_the_streams_back():
    model = Dropout()
    key = model.rngs.dropout.key.value

    def bad(m, x):
        m(x)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), lift.split_rngs(model, splits=4):
        lift.vmap(bad, in_axes=(SPLIT, 0))(model, ONES)
    assert model.rngs.dropout.key.value is key
    assert int(model.rngs.dropout.count.value) == 1
