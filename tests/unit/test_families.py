"""Each family's objects come back from being taken apart as their own library would rebuild them."""

import functools
from collections.abc import Callable
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.protocol import Call, Site
from liftcore_plugins.families import equinox, pytree

T = TypeVar("T")
KEY = jax.random.key(0)


class Decoder(eqx.Module):
    kernel: jax.Array
    scales: dict[str, list[jax.Array]]
    activation: Callable[[jax.Array], jax.Array]
    rate: float
    name: str = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)

    def decode(self, x):
        return self.activation(x @ self.kernel) * self.scales["a"][0] * self.rate


class Checked(eqx.Module):
    kernel: jax.Array = eqx.field(converter=jnp.asarray)
    bias: jax.Array

    def __init__(self, kernel):
        # Not in the order of the fields.
        self.bias = jnp.zeros(2)
        self.kernel = kernel

    def __check_init__(self):
        if not isinstance(self.kernel, np.ndarray | jax.Array):
            raise TypeError("Rebuilding must not check, as the leaves may be anything.")


class Abstract(eqx.Module):
    size: eqx.AbstractVar[int]
    width: int = eqx.field(init=False)


class Concrete(Abstract):
    kernel: jax.Array

    @property
    def size(self):
        return 2

    @property
    def width(self):
        return 3


class Wrapper(eqx.Module):
    fn: Callable[..., jax.Array]

    def __call__(self, x):
        return self.fn(x)

    @property
    def __wrapped__(self):
        return self.fn


class Boxed(eqx.Module, Generic[T]):
    content: T


class Norm(eqx.Module):
    kernel: jax.Array

    @functools.cached_property
    def length(self):
        return jnp.sqrt(jnp.sum(self.kernel**2))


def decoder():
    return Decoder(jnp.eye(2), {"a": [jnp.ones(2), jnp.zeros(2)]}, jnp.tanh, 0.5, "decoder", (2, 2))


def used(module):
    assert module.length > 0
    return module


def documented(x: jax.Array) -> jax.Array:
    """Twice."""
    return 2 * x


MODULES = {
    "fields": decoder,
    "bound method": lambda: decoder().decode,
    "lambda leaf": lambda: eqx.nn.MLP(2, 2, 4, 2, activation=lambda x: x * 2, key=KEY),
    "custom_jvp leaf": lambda: eqx.nn.MLP(2, 2, 4, 2, activation=jax.nn.relu, key=KEY),
    "own init": lambda: Checked(np.ones(2)),
    "property for a field": lambda: Concrete(jnp.ones(2)),
    "cached property": lambda: used(Norm(jnp.ones(2))),
    "generic": lambda: Boxed[int](jnp.ones(2)),
    "nested": lambda: Boxed((decoder(), {"more": decoder()}, None)),
    "module_update_wrapper": lambda: eqx.module_update_wrapper(Wrapper(documented)),
    "filter_jit": lambda: eqx.filter_jit(documented),
    "filter_jit of a module": lambda: eqx.filter_jit(decoder().decode),
    "filter_jit leaf": lambda: Wrapper(eqx.filter_jit(documented)),
    "filter_vmap": lambda: eqx.filter_vmap(decoder().decode),
    "filter_grad": lambda: eqx.filter_grad(documented),
    "filter_checkpoint": lambda: eqx.filter_checkpoint(decoder().decode),
    "Partial": lambda: eqx.Partial(decoder().decode, jnp.ones(2)),
    "Static": lambda: eqx.internal.Static({"size": 2}),
    "noinline": lambda: eqx.internal.noinline(decoder().decode),
    "Shared": lambda: eqx.nn.Shared(
        (eqx.nn.Embedding(2, 2, key=KEY), eqx.nn.Linear(2, 2, key=KEY)),
        where=lambda pair: pair[1].weight,
        get=lambda pair: pair[0].weight,
    ),
    "stateful": lambda: eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="ema"),
    "Sequential": lambda: eqx.nn.Sequential(
        [eqx.nn.Linear(2, 2, key=KEY), eqx.nn.Lambda(jax.nn.gelu), eqx.nn.Dropout()]
    ),
}


def rebuilt(value):
    """Takes a value apart and together as the core does: nodes by their family, the rest by JAX's registry."""
    node = equinox.family.kind(type(value))
    if node is not None:
        static = node.static(value)
        contents = {key: child if key in static else rebuilt(child) for key, child in node.items(value).items()}
        new = node.make(type(value))
        node.fill(new, contents)
        return new
    if jax.tree_util.all_leaves([value]):
        return value
    children, treedef = jax.tree.flatten(value, is_leaf=lambda other: other is not value)
    return treedef.unflatten(map(rebuilt, children))


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_an_equinox_module_comes_back_as_from_jax(make):
    module = make()
    leaves, treedef = jax.tree.flatten(module)
    new = rebuilt(module)
    new_leaves, new_treedef = jax.tree.flatten(new)
    assert new is not module
    assert new_treedef == treedef
    assert all(one is other for one, other in zip(leaves, new_leaves, strict=True))


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_children_of_an_equinox_module_are_the_ones_that_jax_sees_in_its_order(make):
    for module in jax.tree.leaves(make(), is_leaf=lambda value: isinstance(value, eqx.Module)):
        if isinstance(module, eqx.Module):
            node = equinox.family.kind(type(module))
            traced = [key for key in node.items(module) if key not in node.static(module)]
            paths = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda value, top=module: value is not top)[0]
            # Where a property stands for a field, JAX sees an empty child.
            assert traced == [keys[0].name for keys, _ in paths if keys[0].name in vars(module)]


def test_an_equinox_module_is_a_tree():
    node = equinox.family.kind(Decoder)
    assert not node.identity
    assert node.static(decoder()) >= {"name", "sizes"}
    assert node.static(decoder()).isdisjoint({"kernel", "scales", "activation", "rate"})


def test_what_is_rebuilt_is_neither_initialised_nor_checked_and_is_frozen():
    node = equinox.family.kind(Checked)
    new = node.make(Checked)
    node.fill(new, {"kernel": None, "bias": 3})
    assert (new.kernel, new.bias) == (None, 3)
    with pytest.raises(AttributeError, match="cannot assign"):
        new.kernel = 1


def test_filling_makes_the_contents_exactly_those():
    node = equinox.family.kind(Norm)
    module = Norm(jnp.ones(2))
    node.fill(module, {})
    assert not vars(module)


def test_what_equinox_takes_over_from_a_function_is_kept():
    new = rebuilt(eqx.module_update_wrapper(Wrapper(documented)))
    assert new.__doc__ == "Twice."
    assert new.__name__ == "documented"
    assert rebuilt(eqx.filter_jit(documented)).__name__ == "documented"


def test_a_cached_property_is_computed_anew():
    module = Norm(jnp.array([3.0, 4.0]))
    assert module.length == 5
    node = equinox.family.kind(Norm)
    assert "length" not in node.items(module)
    assert "length" not in vars(rebuilt(module))


def test_what_is_rebuilt_runs():
    x = jnp.arange(2.0)
    assert jnp.array_equal(rebuilt(decoder().decode)(x), decoder().decode(x))
    assert jnp.array_equal(rebuilt(eqx.filter_jit(decoder().decode))(x), eqx.filter_jit(decoder().decode)(x))
    pair = rebuilt(MODULES["Shared"]())()
    assert pair[0].weight is pair[1].weight


def test_the_state_of_an_equinox_model_works_after_a_round_trip():
    class Counter(eqx.Module):
        index: eqx.nn.StateIndex

        def __init__(self):
            self.index = eqx.nn.StateIndex(jnp.array(0))

    model, state = eqx.nn.make_with_state(Counter)()
    new_model, new_state = rebuilt((model, state))
    assert equinox.family.kind(eqx.nn.State) is None
    later = new_state.set(new_model.index, jnp.array(3))
    assert later.get(model.index) == 3
    assert state.get(model.index) == 0


@pytest.mark.parametrize("cls", [dict, int, jax.Array, type(jax.nn.relu), type(decoder)])
def test_equinox_leaves_other_classes_to_jax(cls):
    assert equinox.family.kind(cls) is None


def test_no_class_of_plain_pytrees_is_special():
    assert pytree.family.kind(dict) is None
    assert pytree.family.kind(Decoder) is None


@pytest.mark.parametrize("family", [equinox.family, pytree.family])
def test_inexact_arrays_are_parameters(family):
    def tags(value):
        return family.tags(Site(Call("vmap", "f"), "in", "model", ("kernel",), value))

    assert tags(jnp.ones(2)) == {"param"}
    assert tags(np.ones(2, complex)) == {"param"}
    assert tags(jnp.arange(2)) == frozenset()
    assert tags(jax.random.key(0)) == frozenset()


@pytest.mark.parametrize("module", [equinox, pytree])
def test_a_familys_example_holds_its_arrays_and_computes_the_same_as_every_other(module):
    arrays = {"kernel": jnp.eye(3) / 2, "bias": jnp.arange(3.0)}
    model = module.case.make(arrays)
    assert dict(module.case.arrays(model)) == arrays
    x = jnp.ones((4, 3))
    assert jnp.allclose(module.case.apply(model, x), jnp.tanh(x / 2 + arrays["bias"]))
