"""Filters pick the same leaves in every family, and say plainly what is no filter."""

import collections
import dataclasses
import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore import filters, registry
from liftcore.errors import FilterError
from liftcore.filters import All, Any, In, Not, PathContains, compile_filter
from liftcore.protocol import Call, Family, Site


class Cell:
    """Stands in for a family's mutable cell."""

    def __init__(self, value):
        self.value = value


class Weight(Cell):
    tag = "param"


class LowRank(Weight):
    pass


class Encoder:
    pass


class Deep(Encoder):
    pass


def site(*path, value=None, reference=None, owners=(), tags=("param",)):
    value = jnp.ones(2) if value is None else value
    return Site(Call("vmap", "forward"), "in", "model", path, value, reference, owners, frozenset(tags))


def matches(spec, *args, **kwargs):
    return compile_filter(spec)(site(*args, **kwargs))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(..., True), (True, True), (np.True_, True), (None, False), (False, False), (np.False_, False)],
)
def test_constants(spec, expected):
    assert matches(spec, "kernel") is expected


def test_a_string_is_a_tag():
    assert matches("param")
    assert not matches("batch_stat")
    assert matches("dropout", tags=("rng", "dropout"))


def test_a_kind_that_declares_a_tag_matches_the_tag_in_every_family():
    assert matches(Weight)
    assert matches(Weight, reference=LowRank(1.0))
    assert not matches(Weight, reference=Cell(1.0), tags=())


def test_a_subclass_of_a_kind_matches_its_own_instances_only():
    assert matches(LowRank, reference=LowRank(1.0))
    assert not matches(LowRank, reference=Weight(1.0))
    assert not matches(LowRank)


def test_a_type_matches_the_reference_or_the_value():
    assert matches(Cell, reference=LowRank(1.0))
    assert matches(jax.Array)
    assert matches(jax.Array, reference=Cell(1.0))
    assert matches(np.ndarray, value=np.ones(2))
    assert not matches(np.ndarray)
    assert not matches(Encoder, owners=(Encoder,))


def test_in_matches_below_a_type_however_deep():
    assert matches(In(Encoder), owners=(Encoder, Cell))
    assert matches(In(Encoder), owners=(Cell, Deep))
    assert not matches(In(Deep), owners=(Encoder,))
    assert not matches(In(Encoder))


def test_in_refuses_what_is_no_type():
    with pytest.raises(FilterError, match=r"In\('encoder'\)\nIn takes the type") as error:
        In("encoder")
    assert "PathContains('key')" in str(error.value)


def test_path_contains():
    assert matches(PathContains("encoder"), "encoder", 0, "kernel")
    assert matches(PathContains(0), "encoder", 0, "kernel")
    assert not matches(PathContains("enc"), "encoder")
    assert matches(PathContains("enc", exact=False), "encoder")
    assert not matches(PathContains("1", exact=False), "encoder", 0)
    assert matches(PathContains("1", exact=False), "layers", 12)


def test_a_callable_of_one_parameter_sees_the_leaf():
    assert matches(eqx.is_array)
    assert matches(eqx.is_inexact_array)
    assert not matches(eqx.is_inexact_array, value=jnp.arange(2))
    assert matches(lambda leaf, rank=1: leaf.ndim == rank)
    assert matches(lambda *leaves: len(leaves) == 1)
    assert matches(functools.partial(lambda rank, leaf: leaf.ndim == rank, 1))


def test_a_callable_of_two_parameters_sees_the_path_and_the_leaf():
    assert matches(lambda path, leaf: path[-1] == "kernel" and leaf.ndim == 1, "layers", 0, "kernel")
    assert not matches(lambda path, leaf: path[-1] == "kernel", "layers", 0, "bias")


def test_a_builtin_without_a_signature_is_called_with_the_leaf():
    assert matches(operator.methodcaller("is_integer"), value=2.0)
    assert not matches(operator.methodcaller("is_integer"), value=2.5)


def test_a_class_that_is_callable_by_instances_counts_its_own_parameters():
    class Named:
        def __call__(self, path, leaf):
            return path[-1] == "kernel"

    assert matches(Named(), "kernel")
    assert compile_filter(Named()).by_path


def test_a_librarys_own_filter_is_adapted_by_its_family():
    class Foreign:
        key = "kernel"

    def adapt(value):
        return PathContains(value.key) if isinstance(value, Foreign) else value

    root = __name__.partition(".")[0]
    with registry.families.temporary(root, Family(root, kind=lambda cls: None, adapt=adapt)):
        compiled = compile_filter(Not(Foreign()))
    assert compiled.by_path
    assert compiled(site("bias"))
    assert not compiled(site("kernel"))


@pytest.mark.parametrize("spec", [lambda: True, lambda a, b, c: True, lambda leaf, *, key: True])
def test_a_callable_with_other_parameters_is_refused(spec):
    with pytest.raises(
        FilterError, match=r"filter <lambda>\n.*its parameters: \(.*\)\nA callable filter is called with"
    ):
        compile_filter(spec)


def test_a_callable_must_return_a_bool():
    with pytest.raises(FilterError, match="must return a bool, not an array") as error:
        matches(lambda leaf: leaf > 0, "layers", 0, "kernel")
    assert str(error.value).startswith("vmap of forward: filter <lambda>, at model.layers[0].kernel\n")
    with pytest.raises(FilterError, match="of type NoneType"):
        matches(lambda leaf: None)


def test_a_callable_must_not_return_a_tracer():
    @jax.jit
    def traced(x):
        compile_filter(lambda leaf: (leaf > 0).all())(site("kernel", value=x))
        return x

    with pytest.raises(FilterError, match="must return a bool"):
        traced(jnp.ones(2))


def test_any_all_not_and_sequences():
    kernel = ("layers", "kernel")
    assert matches(Any("batch_stat", PathContains("kernel")), *kernel)
    assert not matches(Any(), *kernel)
    assert matches(All("param", PathContains("kernel")), *kernel)
    assert not matches(All("param", PathContains("bias")), *kernel)
    assert matches(All(), *kernel)
    assert matches(Not("batch_stat"), *kernel)
    assert matches(["batch_stat", "param"], *kernel)
    assert matches(("batch_stat", PathContains("kernel")), *kernel)
    assert not matches([], *kernel)
    assert not matches(Not([All(Any("param"), ...)]), *kernel)


def test_a_tree_of_bools_is_looked_up_by_path():
    mlp = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    nothing = jax.tree.map(lambda _: False, mlp)
    spec = eqx.tree_at(lambda tree: tree.layers[-1].weight, nothing, True)
    assert matches(spec, "layers", 1, "weight")
    assert not matches(spec, "layers", 0, "weight")
    assert not matches(spec, "elsewhere")


def test_a_tree_may_be_a_prefix_and_hold_other_filters():
    spec = {"encoder": True, "decoder": "batch_stat", "head": [eqx.is_array, False], "rest": None}
    assert matches(spec, "encoder", "layers", 0, "kernel")
    assert not matches(spec, "decoder", "kernel")
    assert matches(spec, "decoder", "mean", tags=("batch_stat",))
    assert matches(spec, "head", 0)
    assert not matches(spec, "head", 1)
    assert not matches(spec, "rest")
    assert not matches(spec)


def test_a_named_tuple_is_a_tree_and_not_a_sequence():
    pair = collections.namedtuple("pair", "first second")
    assert not matches(pair(False, True), "first")
    assert matches(pair(False, True), "second")


def test_a_callable_module_without_bools_is_a_callable():
    class LargerThan(eqx.Module):
        size: jax.Array

        def __call__(self, leaf):
            return bool(leaf.size > self.size)

    assert matches(LargerThan(jnp.array(1)))
    assert matches(jax.tree_util.Partial(lambda leaf: leaf.ndim == 1))


@pytest.mark.parametrize("spec", [1, 3.5, object(), {1, 2}, jnp.ones(2), b"param"])
def test_what_is_no_filter_is_named_with_all_that_is_accepted(spec):
    with pytest.raises(FilterError, match=r"(?s)^filter .*is no filter\.\nWay out: Use \.\.\. \(every leaf\)"):
        compile_filter(spec)
    with pytest.raises(FilterError, match="is no filter"):
        compile_filter([All("param", Not(spec))])


def test_what_is_no_filter_in_a_tree_is_named_with_its_place():
    with pytest.raises(FilterError, match="is no filter") as error:
        compile_filter({"encoder": [True, 3.5]})
    assert error.value.__notes__ == ["It stands in a tree of filters, at tree.encoder[1]."]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (..., False),
        (None, False),
        ("param", False),
        (LowRank, False),
        (eqx.is_array, False),
        (In(Encoder), True),
        (PathContains("x"), True),
        (lambda path, leaf: True, True),
        ({"kernel": True}, True),
        (Any("param", "batch_stat"), False),
        (Any("param", In(Encoder)), True),
        (All(..., Not(PathContains("x"))), True),
        (["param", lambda path, leaf: True], True),
    ],
)
def test_a_compiled_filter_says_whether_it_looks_at_the_path(spec, expected):
    assert compile_filter(spec).by_path is expected


def test_filters_compare_by_value():
    def made():
        return Any("param", All(In(Encoder), Not(PathContains("kernel", exact=False))))

    assert made() == made()
    assert hash(made()) == hash(made())
    assert Any("param") != All("param")
    assert Any("param") != Any("batch_stat")
    assert In(Encoder) != In(Deep)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made().filters = ()


def test_filters_are_written_as_typed():
    spec = [Any("param", In(Encoder)), All(LowRank, ...), Not(PathContains("a", exact=False)), eqx.is_array]
    assert filters.text(spec) == (
        "[Any('param', In(Encoder)), All(LowRank, ...), Not(PathContains('a', exact=False)), is_array]"
    )
    assert filters.text(lambda leaf: True) == "<lambda>"


def test_first_match_wins():
    compiled = [compile_filter(spec) for spec in ("batch_stat", PathContains("kernel"), ...)]
    assert filters.first(compiled, site("kernel")) == 1
    assert filters.first(compiled, site("bias")) == 2
    assert filters.first(compiled[:2], site("bias")) is None
