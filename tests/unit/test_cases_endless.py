"""A container that holds itself is no tree: it is refused, and not walked for ever."""

import equinox as eqx
import jax.numpy as jnp
import pytest

import liftcore as lift
from liftcore.errors import StructureError


class Held(eqx.Module):
    items: list


def itself():
    items = [jnp.ones(2)]
    items.append(items)
    return items


def held():
    module = Held([jnp.ones(2)])
    module.items.append(module.items)  # Equinox looks when the module is made
    return module


@pytest.mark.parametrize("make", [itself, lambda: {"items": itself()}, held])
def test_a_container_that_holds_itself_is_refused_where_it_is_a_tree(make):
    with pytest.raises(StructureError, match=r"jit of <lambda>: value(.|\n)*holds itself"):
        lift.jit(lambda value: 1)(make())


def test_a_list_below_a_module_may_hold_itself():
    module = lift.Module()
    module.items = itself()
    assert float(lift.jit(lambda m: m.items[1][1][0].sum())(module)) == 2.0
    with pytest.raises(StructureError, match="holds itself"):
        lift.jit(lambda m: m.items)(module)
