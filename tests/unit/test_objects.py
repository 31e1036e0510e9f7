"""Own objects: variables, modules and their family."""

from __future__ import annotations

import copy
import dataclasses
import gc
import operator
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore as lift
from liftcore import captures
from liftcore._jax import trace_state
from liftcore.errors import CaptureError, LiftError, WriteError
from liftcore.filters import compile_filter
from liftcore.protocol import Call, Node, Reference, Site
from liftcore_plugins.families.objects import case, family
from liftcore_plugins.objects import (
    BatchStat,
    Cache,
    Intermediate,
    Module,
    ObjectError,
    Param,
    RngCount,
    RngKey,
    Rngs,
    Variable,
)

CALL = Call("jit", "f")


class LoRA(Param):
    """A subclass that declares no tag."""


class Tagged(Param):
    tag = "adapter"


class Linear(Module):
    def __init__(self, size: int) -> None:
        self.kernel = Param(jnp.ones((size, size)), axes=("in", "out"))
        self.bias = Param(jnp.zeros(size))

    def __call__(self, x):
        return x @ self.kernel + self.bias


class Net(Module):
    """Sharing, a cycle, containers, statics."""

    def __init__(self) -> None:
        self.layers = [Linear(2) for _ in range(3)]
        self.tied = self.layers[0]
        self.heads = {"a": Linear(2)}
        self.itself = self
        self.name = "net"


class Config(Module, kw_only=True):
    width: int
    kernel: Param = dataclasses.field(default_factory=lambda: Param(1.0))


class Derived(Config):
    extra: int


def array():
    return jnp.array([[1.0, 2.0], [3.0, 4.0]])


# Variables


def test_value_reads_and_writes():
    v = Param(1.0)
    v.value = 2.0
    assert v.value == 2.0


def test_a_variable_given_as_value_is_taken_apart():
    v = Param(Param(array()))
    v.value = Param(3.0)
    assert v.value == 3.0


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.matmul,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("apply", BINARY)
def test_operators_give_what_the_arrays_give(apply):
    a, b = array(), array().T
    expected = apply(a, b)
    for left, right in [(Param(a), b), (a, Param(b)), (Param(a), Param(b)), (Param(a), np.asarray(b))]:
        found = apply(left, right)
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("apply", BITWISE)
def test_bitwise_operators_give_what_the_arrays_give(apply):
    a, b = jnp.array([5, 6]), jnp.array([1, 2])
    np.testing.assert_array_equal(apply(Param(a), b), apply(a, b))
    np.testing.assert_array_equal(apply(a, Param(b)), apply(a, b))


@pytest.mark.parametrize("apply", [operator.add, operator.mul, operator.matmul, operator.sub])
def test_operators_with_numpy_on_the_left(apply):
    left = np.asarray(array())
    found = apply(left, Param(array()))
    assert isinstance(found, jax.Array)
    np.testing.assert_array_equal(found, apply(array(), array()))


def test_numbers_on_the_left():
    assert 2 * Param(3.0) == 6.0
    assert 2 - Param(3.0) == -1.0
    assert 2 ** Param(3.0) == 8.0
    assert np.float32(2) / Param(jnp.float32(4)) == 0.5


def test_unary_operators_and_conversions():
    v = Param(jnp.array(-2))
    assert (-v, +v, abs(v), ~v) == (2, -2, 2, 1)
    assert (bool(v), int(v), float(v), complex(v)) == (True, -2, -2.0, -2)
    assert [10, 20, 30][v] == 20
    assert f"{Param(1.5):.2f}" == "1.50"


def test_in_place_operators_update_and_keep_the_variable():
    module = Linear(2)
    before = module.kernel
    module.kernel += 1
    module.kernel *= 3
    module.kernel @= jnp.eye(2)
    assert module.kernel is before
    np.testing.assert_array_equal(module.kernel.value, jnp.full((2, 2), 6.0))


JNP = [
    jnp.sum,
    jnp.exp,
    jnp.ravel,
    jnp.linalg.norm,
    jnp.transpose,
    jnp.argmax,
    jnp.zeros_like,
    jax.nn.relu,
    jax.nn.softmax,
    np.asarray,
    jnp.asarray,
    lambda v: jnp.dot(v, array()),
    lambda v: jnp.dot(array(), v),
    lambda v: jnp.einsum("ij,jk", v, array()),
    lambda v: jnp.where(array() > 2, v, 0),
    lambda v: jnp.concatenate([v, array()]),
    lambda v: jnp.zeros((2, 2)).at[...].set(v),
    lambda v: jnp.maximum(v, 2),
    lambda v: jnp.reshape(v, (4,)),
    lambda v: np.array(v, dtype=np.float16),
]


@pytest.mark.parametrize("apply", JNP)
def test_functions_of_jax_numpy_take_a_variable(apply):
    found = apply(Param(array(), note="x"))
    assert not isinstance(found, Variable)
    np.testing.assert_array_equal(found, apply(array()))


def test_attributes_of_the_value():
    v = Param(array())
    assert (v.shape, v.dtype, v.ndim, v.size, len(v)) == ((2, 2), jnp.float32, 2, 4, 2)
    assert v.astype(jnp.int32).dtype == jnp.int32
    np.testing.assert_array_equal(v.T, array().T)
    np.testing.assert_array_equal(list(v)[1], array()[1])


def test_an_unknown_attribute_names_the_kind_and_the_metadata():
    with pytest.raises(AttributeError, match=r"Param has no 'wrong', and nor has its value$"):
        _ = Param(1.0).wrong
    with pytest.raises(AttributeError, match=r"v\.metadata\['axes'\]"):
        _ = Param(1.0, axes=1).axes


def test_indexing_and_updates():
    v = Param(array())
    before = v.value
    assert v[...] is before
    assert v[1, 0] == 3.0
    v[0] = 7.0
    v[1, jnp.array(1)] = Param(9.0)
    np.testing.assert_array_equal(v.value, [[7.0, 7.0], [3.0, 9.0]])
    np.testing.assert_array_equal(before, array())


def test_overwriting_all_keeps_shape_and_dtype():
    v = Param(array())
    new = array() + 1
    v[...] = new
    assert v.value is new
    v[...] = 0
    assert (v.shape, v.dtype) == ((2, 2), jnp.float32)


def test_a_number_and_a_numpy_array_can_be_updated():
    v = Param(np.zeros(2, np.float32))
    v[0] = 1.0
    np.testing.assert_array_equal(v.value, [1.0, 0.0])
    count = Param(0)
    count[...] = 3
    assert count.value == 3


def test_a_variable_may_hold_a_pytree():
    v = Cache({"k": jnp.ones(2), "n": 1})
    before = v.value
    v["n"] = 2
    assert (before["n"], v.value["n"], v["n"]) == (1, 2, 2)
    v[...] = [1, 2]
    v[0] = 5
    assert v.value == [5, 2]
    assert jax.tree.leaves(v) == [5, 2]


def test_variables_compare_and_hash_by_identity():
    v, w = Param(array()), Param(array())
    assert v == v
    assert v != w
    assert v != "param"
    assert len({v, w, v}) == 2


@pytest.mark.parametrize("other", [1, 1.0, np.ones(2), jnp.ones(2)])
def test_comparing_with_a_value_is_an_error(other):
    with pytest.raises(ObjectError, match=r"v\.value == x"):
        _ = Param(1.0) == other


def test_metadata_is_an_immutable_mapping_that_is_replaced():
    v = Param(1.0, axes=("a",))
    before = v.metadata
    with pytest.raises(TypeError):
        v.metadata["axes"] = 1
    v.set_metadata(frozen=True)
    assert v.metadata == {"axes": ("a",), "frozen": True}
    assert before == {"axes": ("a",)}
    v.metadata = {}
    assert v.metadata == {}


def test_other_attributes_are_refused():
    with pytest.raises(ObjectError, match="set_metadata"):
        Param(1.0).rank = 2
    with pytest.raises(ObjectError, match="set_metadata"):
        LoRA(1.0).rank = 2
    with pytest.raises(ObjectError, match="slots"):
        type("Slotted", (Param,), {"__slots__": ("rank",)})


def test_a_subclass_may_have_its_own_init():
    class Scaled(Param):
        def __init__(self, scale: float) -> None:
            super().__init__(jnp.full(2, scale), scale=scale)

    assert repr(Scaled(2.0)) == "Scaled(float32[2], scale=2.0)"
    cell = family.kind(Scaled).make(Scaled, {"scale": 3.0})
    family.kind(Scaled).write(cell, 1.0)
    assert (cell.value, cell.metadata) == (1.0, {"scale": 3.0})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
@pytest.mark.parametrize("value", [array(), {"a": np.ones(2)}, 3])
def test_copies_of_a_variable(again, value):
    v = LoRA(value, axes=("a",))
    w = again(v)
    assert (type(w), w is v, w.metadata) == (LoRA, False, {"axes": ("a",)})
    jax.tree.map(np.testing.assert_array_equal, w.value, value)
    w.value = 0
    assert v.value is value


def test_a_key_survives_pickle():
    v = pickle.loads(pickle.dumps(RngKey(jax.random.key(3), stream="s")))
    assert v.value == jax.random.key(3)


# Traces and captures


def _write(v, x=0.0):
    v.value = x
    return x


@pytest.mark.parametrize(
    "run",
    [
        lambda f: jax.jit(f)(1.0),
        lambda f: jax.grad(f)(1.0),
        lambda f: jax.vmap(f)(jnp.ones(2)),
        lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones(2)),
        lambda f: jax.eval_shape(f, 1.0),
    ],
)
def test_a_plain_transform_may_read_and_not_write(run):
    v = Param(2.0)
    run(lambda x: x * v)
    with pytest.raises(WriteError, match=r"write to Param\(2\.0\).*trace(.|\n)*lift\.jit\(f\)\(obj, \.\.\.\)"):
        run(lambda x: _write(v, x))
    with pytest.raises(WriteError):
        run(lambda x: v.set_metadata(a=1) or x)
    assert (v.value, v.metadata) == (2.0, {})


def test_a_variable_made_in_a_trace_may_be_written_there():
    @jax.jit
    def f(x):
        v = Param(x)
        v.value = v + 1
        v[...] = jax.checkpoint(jax.jit(lambda y: y * v.value))(x)
        return v.value

    assert f(2.0) == 6.0


def test_what_jax_unflattens_is_a_read_only_copy():
    v = LoRA(array(), rank=2)
    assert jax.jit(lambda w: (w * 2).sum() + w.metadata["rank"])(v) == 22.0
    with pytest.raises(WriteError, match=r"copy that JAX made(.|\n)*LoRA\(v\.value\)"):
        jax.jit(lambda w: _write(w, 1.0))(v)
    doubled = jax.tree.map(lambda x: x * 2, v)
    assert (type(doubled), doubled.metadata) == (LoRA, {"rank": 2})
    with pytest.raises(WriteError, match="copy that JAX made"):
        doubled += 1
    assert jax.tree_util.tree_flatten_with_path(v)[0][0][0] == (jax.tree_util.GetAttrKey("value"),)


def test_the_trace_state_is_that_of_the_trace():
    outside, found = trace_state(), []
    with jax.named_scope("a"), jax.default_matmul_precision("float32"):
        assert trace_state() == outside
    jax.jit(lambda x: found.extend([trace_state(), jax.jit(lambda y: y)(x), trace_state()]))(1.0)
    assert found[0] == found[2]
    assert found[0] != outside


def test_reads_and_writes_are_reported_to_the_lifted_call():
    v, hidden = Param(1.0), Param(5.0)
    with captures.entered(captures.Frame(CALL, {}, {})) as frame:
        inner = Param(2.0)
        inner.value = inner.value + v.value
        assert frame.missing == {id(v): v}
        with pytest.raises(CaptureError, match="captured Param was written"):
            v.value = 0.0
        with pytest.raises(CaptureError):
            v.set_metadata(a=1)
    with captures.entered(captures.Frame(CALL, {id(v): hidden}, {})):
        assert v.value == 5.0
        assert float(jnp.sum(v)) == 5.0
        assert v + 1 == 6.0
    assert (v.value, inner.value) == (1.0, 3.0)


# Modules


def test_modules_compare_and_hash_by_identity():
    a, b = Config(width=1), Config(width=1)
    assert a != b
    assert len({a, b, a}) == 2


def test_class_options_make_a_dataclass_and_are_not_inherited():
    assert dataclasses.is_dataclass(Config)
    assert Config(width=2).kernel.value == 1.0
    with pytest.raises(TypeError):
        Config(2)
    assert [field.name for field in dataclasses.fields(Derived)] == ["width", "kernel"]
    assert not dataclasses.is_dataclass(Linear)


def test_dataclass_options_are_those_of_dataclasses():
    class Ordered(Module, order=True):
        x: int

    class Compared(Module, eq=True, repr=True):
        x: int

    class Frozen(Module, frozen=True):
        x: int

    assert Ordered(1) < Ordered(2)
    assert Compared(1) == Compared(1)
    assert "Compared(x=1)" in repr(Compared(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Frozen(1).x = 2
    with pytest.raises(TypeError):
        type("Unknown", (Module,), {}, unknown=True)


def test_a_default_that_all_instances_would_share_is_refused():
    with pytest.raises(ObjectError, match=r"class Shared: field x(.|\n)*default_factory"):
        type("Shared", (Module,), {"__annotations__": {"x": Param}, "x": Param(1.0)}, kw_only=True)


@pytest.mark.parametrize("options", [{}, {"slots": True}])
def test_slots_are_refused(options):
    body = {"__annotations__": {"x": int}} if options else {"__slots__": ("x",)}
    with pytest.raises(ObjectError, match="slots"):
        type("Slotted", (Module,), body, **options)


def test_repr_is_a_tree_that_writes_shared_objects_once():
    assert repr(Net()) == (
        "Net(\n"
        "  layers=[\n"
        "    3 x Linear(kernel=Param(float32[2,2], axes=('in', 'out')), bias=Param(float32[2])),\n"
        "  ],\n"
        "  tied=Linear(...),\n"
        "  heads={\n"
        "    'a': Linear(kernel=Param(float32[2,2], axes=('in', 'out')), bias=Param(float32[2])),\n"
        "  },\n"
        "  itself=Net(...),\n"
        "  name='net',\n"
        ")"
    )


def test_repr_of_what_a_module_may_hold():
    class Holder(Module):
        pass

    class Shouting(Module):
        def __repr__(self):
            return "LOUD"

    holder = Holder()
    holder.raw = np.ones((2, 3), np.float32)
    holder.pair, holder.one = (1, Param(jnp.ones(1))), (1,)
    holder.cache = Cache({"k": jnp.ones(1)})
    holder.fn, holder.inner, holder.empty = jnp.tanh, Shouting(), []
    assert repr(holder) == (
        "Holder(\n"
        "  raw=float32[2,3],\n"
        "  pair=(1, Param(float32[1])),\n"
        "  one=(1,),\n"
        "  cache=Cache({'k': float32[1]}),\n"
        "  fn=tanh,\n"
        "  inner=LOUD,\n"
        "  empty=[],\n"
        ")"
    )


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_a_module_keep_sharing_and_cycles(again):
    net = Net()
    new = again(net)
    assert new.tied is new.layers[0]
    assert new.itself is new
    assert new.layers[0].kernel is not net.layers[0].kernel
    new.layers[0].kernel.value = jnp.zeros((2, 2))
    np.testing.assert_array_equal(net.tied.kernel.value, jnp.ones((2, 2)))
    assert repr(new) == repr(net)


def test_modules_and_variables_can_be_weakly_referenced():
    net = Net()
    dead = [weakref.ref(net), weakref.ref(net.tied.bias)]
    del net
    gc.collect()
    assert [ref() for ref in dead] == [None, None]


def test_a_plain_transform_refuses_a_module():
    with pytest.raises(TypeError, match="Linear"):
        jax.jit(lambda m: 1)(Linear(2))


# The family


def test_kinds_of_classes():
    assert isinstance(family.kind(LoRA), Reference)
    assert isinstance(family.kind(Net), Node)
    assert family.kind(int) is None


def test_a_module_is_taken_apart_and_rebuilt_without_its_init():
    class Guarded(Module):
        def __init__(self, size: int) -> None:
            raise AssertionError

        def __setattr__(self, name, value):
            raise AssertionError

    node = family.kind(Guarded)
    new = node.make(Guarded)
    node.fill(new, {"a": 1, "b": 2})
    items = node.items(new)
    assert items == {"a": 1, "b": 2}
    node.fill(new, {"b": 3})
    assert items == {"b": 3}
    node.fill(new, items)
    assert vars(new) == {"b": 3}


def test_raw_access_of_the_engine_goes_round_the_checks():
    kind = family.kind(Param)
    v = Param(1.0, a=1)
    with captures.entered(captures.Frame(CALL, {}, {})) as frame:
        assert kind.read(v) == 1.0
        kind.write(v, 2.0)
        kind.set_metadata(v, {"b": 2})
        made = kind.make(Param, {"c": 3})
        assert kind.born(made) is frame.token
        assert frame.missing == {}
    assert kind.born(v) is None
    assert (kind.read(v), kind.metadata(v), kind.metadata(made)) == (2.0, {"b": 2}, {"c": 3})


def _site(cell, **where):
    return Site(
        CALL, "in", "m", ("x",), cell.value, cell, tags=family.tags(Site(CALL, "in", "m", (), 0, cell)), **where
    )


@pytest.mark.parametrize(
    ("cell", "tags"),
    [
        (Variable(1.0), set()),
        (Param(1.0), {"param"}),
        (LoRA(1.0), {"param"}),
        (Tagged(1.0), {"param", "adapter"}),
        (BatchStat(1.0), {"batch_stat"}),
        (Cache(1.0), {"cache"}),
        (Intermediate(1.0), {"intermediate"}),
        (RngKey(0, stream="dropout"), {"rng", "rng_key", "dropout"}),
        (RngCount(0, stream="dropout"), {"rng", "rng_count", "dropout"}),
        (Param(1.0, stream="dropout"), {"param"}),
    ],
)
def test_tags(cell, tags):
    assert _site(cell).tags == tags


def test_a_raw_array_has_no_tags():
    assert family.tags(Site(CALL, "in", "m", (), jnp.ones(2))) == frozenset()


def test_a_kind_without_a_tag_matches_its_own_instances_only():
    cells = [Param(1.0), LoRA(1.0), Tagged(1.0), BatchStat(1.0)]

    def matched(spec):
        return [compile_filter(spec)(_site(cell)) for cell in cells]

    assert matched(Param) == [True, True, True, False]
    assert matched(LoRA) == [False, True, False, False]
    assert matched(Tagged) == matched("adapter") == [False, False, True, False]
    assert matched(Variable) == [True] * 4


def test_the_container_of_a_state_has_its_leaves_at_their_paths():
    leaves = {("layers", 0, "kernel"): jnp.ones(2), ("bias",): jnp.zeros(1)}
    model = Module()
    model.layers = [Module()]
    model.layers[0].kernel, model.bias = Param(jnp.ones(2)), Param(jnp.zeros(1))
    assert lift.state(model).leaves().keys() == leaves.keys()
    assert lift.state(Param(5.0)) == 5.0


def test_the_familys_case():
    arrays = {"kernel": jnp.ones((3, 3)), "bias": jnp.arange(3.0)}
    model = case.make(arrays)
    np.testing.assert_array_equal(case.apply(model, jnp.ones(3)), [3.0, 4.0, 5.0])
    assert case.arrays(model) == arrays
    assert Module in type(model).__mro__


def test_errors_are_lift_errors():
    assert issubclass(ObjectError, LiftError)
    assert isinstance(Rngs(0), Module)
