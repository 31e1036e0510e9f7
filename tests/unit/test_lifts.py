"""StateAxes and DiffState decide leaf by leaf, and refuse with all that is needed to put it right."""

import equinox as eqx
import jax.numpy as jnp
import pytest

from liftcore import prefixes
from liftcore.axes import SHARED, Carry
from liftcore.errors import FilterError, PrefixError
from liftcore.filters import Any, In, Not, PathContains
from liftcore.protocol import Call, Site
from liftcore_plugins.lifts.diff_state import DiffState
from liftcore_plugins.lifts.state_axes import StateAxes


def site(*path, tags=("param",), transform="vmap", owners=()):
    return Site(Call(transform, "forward"), "in", "model", path, jnp.ones(2), None, owners, frozenset(tags))


def test_the_first_match_decides():
    axes = StateAxes({PathContains("head"): 2, "param": 0, ...: None})
    assert axes.resolve(site("head", "kernel")) == 2
    assert axes.resolve(site("body", "kernel")) == 0
    assert axes.resolve(site("body", "mean", tags=("batch_stat",))) is None


def test_pairs_hold_filters_that_are_no_keys():
    axes = StateAxes([(["batch_stat", "cache"], None), ({"head": True}, 1), ("param", 0)])
    assert axes.resolve(site("mean", tags=("cache",))) is None
    assert axes.resolve(site("head", "kernel")) == 1
    assert axes.resolve(site("body", "kernel")) == 0
    assert repr(axes) == "StateAxes({['batch_stat', 'cache']: None, {'head': True}: 1, 'param': 0})"


def test_no_match_names_the_transform_the_leaf_its_tags_and_the_way_out():
    axes = StateAxes({"param": 0, In(eqx.nn.MLP): 1})
    with pytest.raises(FilterError) as error:
        axes.resolve(site("layers", 0, "mean", tags=("batch_stat", "state")))
    assert str(error.value) == (
        "vmap of forward: model.layers[0].mean\n"
        "  its tags: 'batch_stat', 'state'\n"
        "  the filters: 'param', In(MLP)\n"
        "No filter matches it.\n"
        "Way out: Say what happens to the rest: StateAxes({'param': 0, In(MLP): 1, ...: None})."
    )


def test_no_match_of_nothing():
    with pytest.raises(FilterError, match="its tags: none\n  the filters: none\n"):
        StateAxes({}).resolve(site("x", tags=()))


@pytest.mark.parametrize("rest", [..., True])
def test_the_rest_must_be_last(rest):
    with pytest.raises(FilterError, match="The first match wins") as error:
        StateAxes({PathContains("head"): 2, rest: None, "param": 0})
    assert (
        f"Write it last: StateAxes({{PathContains('head'): 2, 'param': 0, {'True' if rest is True else '...'}: None}})"
        in str(error.value)
    )


def test_what_is_no_filter_is_refused_when_it_is_written():
    with pytest.raises(FilterError, match=r"filter 3\.5\nA float is no filter"):
        StateAxes({3.5: 0})


def test_it_says_all_spellings_that_it_can_give():
    axes = StateAxes({"param": 0, "cache": StateAxes({"a": Carry, ...: 1}), ...: None})
    assert list(prefixes.spellings(axes, "scan")) == [0, Carry, 1, None]


def test_none_for_a_stream_that_was_picked_out_means_shared():
    stream = {"rng", "rng_key", "dropout"}
    picked = StateAxes({"rng": None, ...: 0})
    assert picked.resolve(site("rngs", tags=stream)) is SHARED
    assert picked.values("vmap") == [None, 0, SHARED]
    assert StateAxes({Not("param"): None, ...: 0}).resolve(site("mean", tags=("batch_stat",))) is None
    rest = StateAxes({"param": 0, ...: None})
    assert rest.resolve(site("rngs", tags=stream)) is None
    assert rest.values("vmap") == [0, None]


def test_a_lift_type_may_stand_in_it():
    inner = StateAxes({PathContains("head"): 1, ...: 0})
    axes = StateAxes({"param": inner, ...: None})
    assert axes.resolve(site("head")) is inner
    assert axes.by_path


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (StateAxes({"param": 0, eqx.is_array: 1, ...: None}), False),
        (StateAxes({"param": 0, Any("a", In(eqx.nn.MLP)): None}), True),
        (StateAxes([({"head": True}, 0), (..., None)]), True),
        (DiffState(0, ["param", "cache"]), False),
        (DiffState(0, lambda path, leaf: True), True),
    ],
)
def test_it_says_whether_the_path_matters(axes, expected):
    assert axes.by_path is expected


def test_lift_types_compare_by_value():
    def axes(rank, axis):
        return StateAxes([(lambda leaf: leaf.ndim == rank, axis), (["a", {"head": True}], Carry), (..., None)])

    assert axes(1, 0) == axes(1, 0)
    assert hash(axes(1, 0)) == hash(axes(1, 0))
    assert axes(1, 0) != axes(2, 0)
    assert axes(1, 0) != axes(1, 1)
    assert axes(1, 0) != axes(1, False)
    assert StateAxes({"a": 0, "b": 1}) != StateAxes({"b": 1, "a": 0})
    assert DiffState(0, ["param"]) == DiffState(0, ["param"])
    assert hash(DiffState(0, ["param"])) == hash(DiffState(0, ["param"]))
    assert DiffState(0, "param") != DiffState(1, "param")
    assert DiffState(0, "param") != DiffState(0, "cache")
    assert DiffState(0, ...) != StateAxes({...: 0})


def test_diff_state_picks_what_is_differentiated():
    diff = DiffState("model", picked := Any("lora", PathContains("head")))
    assert diff.argnum == "model"
    assert diff.filter is picked
    assert diff.resolve(site("head", transform="grad")) == "diff"
    assert diff.resolve(site("body", tags=("lora",), transform="grad")) == "diff"
    assert diff.resolve(site("body", transform="grad")) is None


@pytest.mark.parametrize("transform", ["grad", "value_and_grad", "a_strangers_gradient"])
def test_diff_state_is_for_derivatives(transform):
    assert DiffState(0, "param").values(transform) == ("diff", None)


@pytest.mark.parametrize("transform", ["vmap", "scan", "jit"])
def test_diff_state_is_refused_where_nothing_is_differentiated(transform):
    with pytest.raises(PrefixError) as error:
        DiffState(0, "param").values(transform)
    assert str(error.value) == (
        f"{transform}: a prefix holds DiffState(0, 'param')\n"
        f"DiffState says what is differentiated, and {transform} differentiates nothing.\n"
        "Ways out:\n"
        "  1. Differentiate: lift.grad(f, argnums=DiffState(0, 'param')).\n"
        "  2. Choose an axis by filter: lift.StateAxes({'param': 0, ...: None})."
    )


def test_diff_state_refuses_what_is_no_filter():
    with pytest.raises(FilterError, match="A float is no filter"):
        DiffState(0, 3.5)
