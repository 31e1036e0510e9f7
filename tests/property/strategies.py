"""Random object graphs, filters, prefixes and programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.property.graphs import KINDS, STATICS, VARIABLES, Blueprint, Fixed, Leaf, Link, Object, Tree

__all__ = ["blueprints", "examples"]

#: Names of attributes and keys: few, so that programs hit them.
NAMES = ("a", "b", "c")

_PLAIN_TREES = ("tuple", "list", "dict", "affine", "pair", "point")
_TREES = (*_PLAIN_TREES, "partial", "method", "closure")
_NUMBERS = tuple(number for number, value in enumerate(STATICS) if isinstance(value, (int, float)))


def examples(count: int) -> settings:
    """Settings of a test: `count` examples, or as many times more as LIFTCORE_EXAMPLES says, drawn at random then."""
    factor = int(os.environ.get("LIFTCORE_EXAMPLES", "1"))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count * factor, derandomize=factor == 1, deadline=None, suppress_health_check=slow)


def leaves(shapes: Sequence[tuple[int, ...]], forms: Sequence[str]) -> st.SearchStrategy[Leaf]:
    return st.builds(Leaf, st.integers(1, 3), st.sampled_from(shapes), st.sampled_from(forms)).map(
        lambda leaf: Leaf(leaf.seed, (), "number") if leaf.form == "number" else leaf
    )


@st.composite
def blueprints(
    draw: st.DrawFn,
    most: int = 5,
    shapes: Sequence[tuple[int, ...]] = ((), (2,), (2, 2)),
    forms: Sequence[str] = ("float", "float", "int", "numpy", "number"),
    kinds: Sequence[str] = KINDS,
    trees: Sequence[str] = _TREES,
    roots: int = 3,
) -> Blueprint:
    """Graphs whose first argument is a Box; every object can be reached from there.

    Args:
      draw: Hypothesis's own.
      most: the most objects.
      shapes: of arrays.
      forms: of leaves.
      kinds: of objects.
      trees: forms of trees below objects.
      roots: the most arguments.
    """
    count = draw(st.integers(1, most))
    chosen = ["box", *(draw(st.sampled_from(kinds)) for _ in range(1, count))]
    holders = [number for number, kind in enumerate(chosen) if kind not in VARIABLES]
    array = leaves(shapes, forms)
    link = st.builds(Link, st.integers(0, count - 1))

    def entries(numbers: bool, forms: Sequence[str], links: bool) -> st.SearchStrategy[Any]:
        allowed = [number for number in range(len(STATICS)) if numbers or number not in _NUMBERS]
        atoms = [array, array, st.builds(Fixed, st.sampled_from(allowed)), *([link, link] if links else [])]
        return st.recursive(
            st.one_of(atoms),
            lambda inner: st.builds(
                Tree, st.sampled_from(forms), st.lists(inner, min_size=1, max_size=3).map(tuple)
            ),
            max_leaves=3,
        )

    # A Python number is a leaf in an argument, and static below an object: only there it stands for a static value.
    below, argument = entries(True, trees, True), entries(False, _PLAIN_TREES, True)
    held = entries(False, [form for form in trees if form in _PLAIN_TREES], draw(st.integers(0, 3)) == 0)
    contents: list[dict[Any, Any]] = []
    for kind in chosen:
        match kind:
            case "box":
                contents.append(draw(st.dictionaries(st.sampled_from(NAMES), below, max_size=3)))
            case "list":
                contents.append(dict(enumerate(draw(st.lists(below, max_size=2)))))
            case "dict":
                contents.append(draw(st.dictionaries(st.sampled_from(["a", "b", 1]), below, max_size=2)))
            case _:
                contents.append({"value": draw(st.one_of(array, array, held))})
    for number in range(1, count):
        parent = draw(st.sampled_from([holder for holder in holders if holder < number]))
        wrap = draw(st.sampled_from([None, None, None, *(form for form in trees if form in _PLAIN_TREES)]))
        key = len(contents[parent]) if chosen[parent] == "list" else f"n{number}"
        contents[parent][key] = Link(number) if wrap is None else Tree(wrap, (Link(number),))
    others = draw(st.lists(argument, max_size=roots - 1))
    built = tuple(Object(kind, tuple(parts.items())) for kind, parts in zip(chosen, contents, strict=True))
    return Blueprint(built, (Link(0), *others))
