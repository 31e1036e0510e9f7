"""The alias validator against brute force: every simple path to every leaf, and what the prefix says there."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import liftcore as lift
from liftcore.errors import AliasError, LiftError
from liftcore.filters import All, In, Not, PathContains
from liftcore.protocol import Call, Site
from tests.property.graphs import Affine, Blueprint, Box, LoRA, Pair, Point, Tree, build
from tests.property.likeness import check_alike, children, has_identity, tags
from tests.property.strategies import blueprints, examples

FORMS = ("tuple", "list", "dict", "affine", "pair", "point")
GRAPHS = blueprints(shapes=((2, 2),), forms=("float", "int", "numpy"), trees=FORMS)

BY_VALUE: tuple[Any, ...] = (
    "param",
    "batch_stat",
    lift.Param,
    lift.Variable,
    LoRA,
    lambda leaf: leaf.dtype == jnp.int32,
    Not("param"),
)
BY_PATH: tuple[Any, ...] = (
    In(Affine),
    In(Box),
    PathContains("a"),
    PathContains("n1"),
    PathContains(0),
    All(PathContains("a"), PathContains("b")),
    Not(PathContains("c")),
    lambda path, leaf: len(path) > 2,
    lambda path, leaf: path[:1] == ("a",),
    lambda path, leaf: path[:2] == ("b", "b"),
)

spellings = st.sampled_from([0, 0, 1, None, None, -1, -2])


def _by_dtype(leaf: Any) -> int | None:
    return 0 if leaf is not None and jnp.issubdtype(leaf.dtype, jnp.floating) else None


def axes(filters: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Prefix leaves: spellings, functions of the leaf, and StateAxes with these filters."""

    def chosen(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pairs = st.lists(st.tuples(st.sampled_from(filters), inner), min_size=1, max_size=2)
        return st.builds(lambda some, rest: lift.StateAxes([*some, (..., rest)]), pairs, spellings)

    return st.one_of(spellings, st.just(_by_dtype), chosen(spellings), chosen(chosen(spellings)))


@st.composite
def prefixes(draw: st.DrawFn, roots: tuple[Any, ...], leaves: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    """A prefix for each argument, nested where the argument is a tree."""

    def below(entry: Any) -> Any:
        if not isinstance(entry, Tree) or draw(st.booleans()):
            return draw(leaves)
        parts = [below(child) for child in entry.children]
        match entry.form:
            case "list":
                return parts
            case "dict":
                return dict(zip("abc", parts, strict=False))
            case "affine":
                return Affine(parts[0], tuple(parts[1:]))
            case "pair":
                return Pair(parts[0], tuple(parts[1:]))
            case "point":
                return Point(parts[0], parts[1:])
            case _:
                return tuple(parts)

    return tuple(below(root) for root in roots)


@st.composite
def calls(draw: st.DrawFn, filters: tuple[Any, ...]) -> tuple[Blueprint, tuple[Any, ...]]:
    blueprint = draw(GRAPHS)
    if draw(st.integers(0, 3)) == 0:
        return blueprint, (draw(axes(filters)),) * len(blueprint.roots)
    return blueprint, draw(prefixes(blueprint.roots, axes(filters)))


def ways(root: str, value: Any, prefix: Any, side: str, call: Call) -> Iterator[tuple[Hashable, Site, Any]]:
    """Every simple path to every leaf of every object: (object and place in it, site, prefix there)."""
    Entry = tuple[Any, str, tuple[Any, ...], tuple[type, ...], Any, Any, tuple[Any, ...], frozenset[int]]
    pending: list[Entry] = [(value, "argument", (), (), prefix, None, (), frozenset())]
    while pending:
        value, mode, path, owners, prefix, obj, place, passed = pending.pop()
        if has_identity(value, mode):
            if id(value) in passed:
                continue
            obj, place, passed = value, (), passed | {id(value)}
        parts = children(value, mode)
        if parts is None:
            if hasattr(value, "dtype") and obj is not None:
                reference = obj if isinstance(obj, lift.Variable) else None
                site = Site(call, side, root, path, value, reference, owners, tags(value, obj, owners))
                yield (id(obj), place), site, prefix
            continue
        named = isinstance(prefix, (tuple, list, dict, Affine, Pair))
        inside = {key: child for key, child, _ in children(prefix, "argument") or []} if named else {}
        if isinstance(value, (Box, Affine)):
            owners = (*owners, type(value))
        for key, child, below in parts:
            step = () if key is None else (key,)
            at = inside[key] if named else prefix
            pending.append((child, below, path + step, owners, at, obj, place + step, passed))


def axis(prefix: Any, site: Site) -> int | None:
    while isinstance(prefix, lift.StateAxes):
        prefix = prefix.resolve(site)
    if callable(prefix):
        prefix = prefix(site.value)
    return None if prefix is None else prefix % 2


def found(roots: tuple[Any, ...], prefixes: tuple[Any, ...], side: str = "in") -> dict[Hashable, set[int | None]]:
    """Every axis that some path gives to each leaf of each object."""
    result = collections.defaultdict(set)
    for number, (root, prefix) in enumerate(zip(roots, prefixes, strict=True)):
        for leaf, site, spelling in ways(f"args[{number}]", root, prefix, side, Call("vmap", "f")):
            result[leaf].add(axis(spelling, site))
    return result


def refused(blueprint: Blueprint, in_axes: tuple[Any, ...]) -> bool:
    roots, made = build(blueprint)
    try:
        y = lift.vmap(lambda x, *args: 2 * x, in_axes=(0, *in_axes))(jnp.arange(2.0), *roots)
    except AliasError:
        twin, twins = build(blueprint)
        check_alike(roots, twin, list(zip(made, twins, strict=True)))
        return True
    assert y.tolist() == [0.0, 2.0]
    return False


@examples(60)
@given(calls(BY_VALUE))
def test_two_paths_with_two_specs_are_refused(call: tuple[Blueprint, tuple[Any, ...]]) -> None:
    blueprint, in_axes = call
    conflict = any(len(axes) > 1 for axes in found(build(blueprint)[0], in_axes).values())
    assert refused(blueprint, in_axes) == conflict


@examples(80)
@given(calls(BY_PATH))
def test_two_paths_with_two_specs_are_refused_where_filters_look_at_the_path(
    call: tuple[Blueprint, tuple[Any, ...]],
) -> None:
    blueprint, in_axes = call
    conflict = any(len(axes) > 1 for axes in found(build(blueprint)[0], in_axes).values())
    assert refused(blueprint, in_axes) == conflict


@examples(60)
@given(st.data())
def test_an_object_that_comes_back_under_another_axis_is_refused(data: st.DataObject) -> None:
    blueprint = data.draw(GRAPHS)
    leaf = axes(BY_VALUE)
    in_axes = (data.draw(leaf),) * len(blueprint.roots)
    out_axes = data.draw(prefixes(blueprint.roots, leaf))
    roots, made = build(blueprint)
    ins = found(roots, in_axes)
    if any(len(one) > 1 for one in ins.values()):
        return
    outs = found(roots, out_axes, "out")
    conflict = any(len(ins[leaf] | outs[leaf]) > 1 for leaf in outs)
    try:
        lift.vmap(lambda x, *args: args, in_axes=(0, *in_axes), out_axes=out_axes)(jnp.arange(2.0), *roots)
    except AliasError:
        assert conflict
    except LiftError:  # a tree's leaf leaves with an axis that it does not have
        assert not conflict
    else:
        assert not conflict
    twin, twins = build(blueprint)
    check_alike(roots, twin, list(zip(made, twins, strict=True)))


def diamond(last: Any) -> Box:
    """Two ways into one object, and two from there into the next."""
    top, middle = Box(), Box()
    top.a = top.b = middle
    middle.a = middle.b = last
    return top


def test_one_of_four_ways_differs() -> None:
    last = Box()
    last.v = lift.Param(jnp.ones((2, 2)))
    for way in (("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")):
        state = lift.StateAxes([(lambda path, leaf, way=way: path[:2] == way, 0), (..., None)])
        with pytest.raises(AliasError, match=r"last|v"):
            lift.vmap(lambda model, x: x, in_axes=(state, 0))(diamond(last), jnp.ones(2))


def test_a_pointer_back_is_no_other_way() -> None:
    model = Box()
    model.encoder, model.v = Box(), lift.Param(jnp.ones(3))
    model.encoder.v, model.encoder.parent = lift.Param(jnp.ones(2)), model
    state = lift.StateAxes({PathContains("encoder"): 0, ...: None})
    y = lift.vmap(lambda model: model.encoder.v.value + model.v.value.sum(), in_axes=state)(model)
    assert y.tolist() == [4.0, 4.0]
