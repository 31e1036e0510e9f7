"""Random object graphs, filters, prefixes and programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.property.graphs import KINDS, STATICS, VARIABLES, Blueprint, Fixed, Leaf, Link, Object, Tree
from tests.property.programs import RESULTS, Program, Step

__all__ = ["blueprints", "examples", "programs"]

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


def _fitting(entry: Any, kinds: Sequence[str], linked: Sequence[str], numbers: bool = True) -> Any:
    """The entry without what cannot be there.

    Args:
      entry: what stands somewhere in an object or argument.
      kinds: of the objects.
      linked: kinds of objects that may be linked to. In a tree a list or dict is a copy, so that a cycle of them has no
        end; a variable in a variable is a leaf of one pytree to JAX, with no end either.
      numbers: whether a Python number is a leaf; in a module it is none.
    """
    match entry:
        case Link(number) if kinds[number] not in linked:
            return Fixed(0)
        case Leaf(seed, _, "number") if not numbers:
            return Leaf(seed, ())
        case Tree(form, children):
            inside = linked if form in ("tuple", "list", "dict", "method") else _without_containers(linked)
            return Tree(form, tuple(_fitting(child, kinds, inside, numbers and form != "affine") for child in children))
        case _:
            return entry


def _without_containers(kinds: Sequence[str]) -> list[str]:
    return [kind for kind in kinds if kind not in ("list", "dict")]


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
    count = draw(st.sampled_from(range(2, most + 1)))
    chosen = ["box", *(draw(st.sampled_from(kinds)) for _ in range(1, count))]
    holders = [number for number, kind in enumerate(chosen) if kind not in VARIABLES]
    # A Python number is a leaf in an argument or a variable, and static below an object.
    array, numeric = leaves(shapes, [form for form in forms if form != "number"]), leaves(shapes, forms)
    link = st.builds(Link, st.integers(0, count - 1))

    def entries(static: bool, forms: Sequence[str], links: bool) -> st.SearchStrategy[Any]:
        fixed = [place for place in range(len(STATICS)) if static or place not in _NUMBERS]
        leaf = array if static else numeric
        atoms = [leaf, leaf, st.builds(Fixed, st.sampled_from(fixed)), *([link, link] if links else [])]
        return st.recursive(
            st.one_of(atoms),
            lambda inner: st.builds(Tree, st.sampled_from(forms), st.lists(inner, min_size=1, max_size=3).map(tuple)),
            max_leaves=3,
        )

    below, argument = entries(True, trees, True), entries(False, _PLAIN_TREES, True)
    plain = [form for form in trees if form in _PLAIN_TREES]
    held = entries(False, plain, draw(st.integers(0, 3)) == 0)
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
                contents.append({"value": draw(st.one_of(numeric, numeric, held))})
    for number in range(1, count):
        parent = draw(st.sampled_from([holder for holder in holders if holder < number]))
        wraps = [None, "tuple"] if chosen[number] in ("list", "dict") else [None, None, None, *plain]
        wrap = draw(st.sampled_from(wraps))
        key = len(contents[parent]) if chosen[parent] == "list" else f"n{number}"
        contents[parent][key] = Link(number) if wrap is None else Tree(wrap, (Link(number),))
    others = draw(st.lists(argument, max_size=roots - 1))
    built = tuple(
        Object(
            kind,
            tuple(
                (key, _fitting(part, chosen, ["box"] if kind in VARIABLES else KINDS)) for key, part in parts.items()
            ),
        )
        for kind, parts in zip(chosen, contents, strict=True)
    )
    loose = _without_containers(KINDS)
    return Blueprint(built, (Link(0), *(_fitting(root, chosen, loose) for root in others)))


def programs(steps: Sequence[Any], most: int = 5, results: Sequence[str] = RESULTS) -> st.SearchStrategy[Program]:
    """Programs of some kinds of steps."""
    number = st.integers(0, 11)
    step = st.builds(Step, st.sampled_from([step.__name__ for step in steps]), number, number, number)
    several = st.sampled_from(range(1, most + 1)).flatmap(lambda count: st.tuples(*[step] * count))
    return st.builds(Program, several, st.sampled_from(results), number)
