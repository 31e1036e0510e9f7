"""Graphs that change at random between calls: a function that goes by plans does what plain Python does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import liftcore as lift
from tests.property.graphs import Blueprint, Fixed, Leaf, Link, Object, Tree, build
from tests.property.likeness import check_alike, children, has_identity, is_leaf
from tests.property.mutations import CHANGES, Change
from tests.property.programs import READS, STRUCTURE, WRITES, Program, Step, run, take, write
from tests.property.strategies import blueprints, examples, programs

_TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jit": lift.jit,
    "remat": lift.remat,
    "a loss": lambda f: lift.value_and_grad(f, has_aux=True),
}
# A graph that changed more often than a few times in turn is watched again after more calls than these: not here.
_CALLS = 4


def _described(roots: Any) -> str:
    """All of a graph but its arrays, as text: a plan that goes wrong anywhere gives another one."""
    known: dict[int, int] = {}
    words: list[str] = []
    pending = [(None, roots, "argument")]
    while pending:
        key, value, mode = pending.pop()
        if key is not None:
            words.append(f"{key!r}:")
        if has_identity(value, mode):
            is_new = id(value) not in known
            words.append(f"#{known.setdefault(id(value), len(known))}")
            if not is_new:
                continue
        if is_leaf(value, mode):
            words.append(f"array{np.shape(value)}")
            continue
        below = children(value, mode)
        words.append(type(value).__name__ if below is not None else _word(value))
        if isinstance(value, lift.Variable):
            words.append(str(dict(value.metadata)))
        pending += reversed(below or [])
    return " ".join(words)


def _word(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__


class _Pair:
    """A graph that a lifted function works on, and its twin, on which plain Python does the same.

    Args:
      blueprint: of both.
      program: what the function does.
      transform: how it is lifted.
    """

    def __init__(self, blueprint: Blueprint, program: Program, transform: str) -> None:
        (self.roots, made), (self.twin, twins) = build(blueprint), build(blueprint)
        self._pairs = list(zip(made, twins, strict=True))
        self._program, self._differentiated = program, transform == "a loss"
        self.lifted = _TRANSFORMS[transform](lambda x, *roots: self._work(x, roots))
        self._turn = 0

    def _work(self, x: Any, roots: Any) -> Any:
        words = _described(roots)
        number, result = run(self._program, roots, x)
        return number, (result, words)

    def call(self, looking: bool = True) -> bool:
        """Calls both, and compares results, graphs and identities; whether the lifted call went by a plan.

        Args:
          looking: compare the graphs. It makes a copy, and who makes a variable with metadata tells that something
            has changed: a plan looks at the graph in full then.
        """
        self._turn += 1
        x, before = jnp.float32(self._turn % 3), self.lifted.stats()
        found = self.lifted(x, *self.roots)
        wanted = self._work(x, self.twin)
        found = found[0] if self._differentiated else found
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        assert found[1][1] == wanted[1][1]
        if looking:
            roots, found, pairs = self._copied(found)
            check_alike((roots, found), (self.twin, wanted), pairs)
        after = self.lifted.stats()
        assert after.calls == before.calls + 1
        self._level()
        return bool(after.planned > before.planned)

    def _copied(self, found: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
        """Copies of the graph and of a result, and which of them and of the twin's objects correspond.

        Who looks into a module exposes it, and a plan is strict with what is exposed: so nobody looks into the graph.
        """
        originals = [(one, other) for one, other in self._pairs if isinstance(one, (lift.Module, lift.Variable))]
        roots, found, copies = lift.clone((self.roots, found, [one for one, _ in originals]))
        return roots, found, [(copy, other) for copy, (_, other) in zip(copies, originals, strict=True)]

    def _level(self) -> None:
        """Gives variables small values again, so that rounding does not add up; no plan depends on a value."""
        for variable, other in self._pairs:
            if isinstance(variable, lift.Variable) and isinstance(variable.value, jax.Array):
                variable.value = other.value = jnp.full_like(variable.value, self._turn % 5)

    def settle(self) -> bool:
        """Calls until a plan is followed, and once more, when a short look may be enough; whether one is."""
        self.call()
        if any(self.call(looking=False) for _ in range(_CALLS)):
            self.call()
        return self.call(looking=False)

    def renew(self) -> bool:
        """Puts a copy in the place of the graph, that nobody has looked into; whether a plan is followed then."""
        self.roots, _, self._pairs = self._copied(None)
        return self.settle()

    def change(self, do: Callable[[Any], None]) -> None:
        """Does the same to both graphs, to the lifted function's last, so that nothing else happens in between."""
        do(self.twin)
        do(self.roots)


def _with(change: Change, *numbers: int) -> Callable[[Any], None]:
    return lambda roots: change(roots, *numbers)


def _stepping(change: Program) -> Callable[[Any], None]:
    def do(roots: Any) -> None:
        run(change, roots, jnp.float32(1))

    return do


_WORKS = programs((write, take, *READS), most=3)
_number = st.integers(0, 11)
# What happens before a change.
_FIRST = ("nothing", "nothing", "nothing", "renewed", "renewed", "forgotten")


def _without_arrays(blueprint: Blueprint) -> Blueprint:
    """The graph with arrays in variables and arguments only: a short look is enough for it."""

    def fixed(entry: Any) -> Any:
        match entry:
            case Leaf():
                return Fixed(7)
            case Tree(form, children):
                return Tree(form, tuple(map(fixed, children)))
        return entry

    def plain(obj: Object) -> Object:
        if obj.kind in ("box", "list"):
            return Object(obj.kind, tuple((key, fixed(entry)) for key, entry in obj.entries))
        return Object(obj.kind, (("value", Leaf(1, (2,))),))

    return dataclasses.replace(blueprint, objects=tuple(map(plain, blueprint.objects)))


_PLAIN = blueprints(kinds=("box", "list", "param", "stat", "lora"), trees=("tuple",), roots=2).map(_without_arrays)
_ANY = st.one_of(blueprints(most=4, trees=("tuple", "dict", "affine", "point")), blueprints(most=4))


class Machine(RuleBasedStateMachine):
    @initialize(
        blueprint=st.one_of(_PLAIN, _ANY),
        program=_WORKS,
        transform=st.sampled_from(["remat", "remat", "a loss", "jit"]),
    )
    def start(self, blueprint: Blueprint, program: Program, transform: str) -> None:
        self.pair = _Pair(blueprint, program, transform)
        self.pair.renew()

    @rule(change=programs((*STRUCTURE, *WRITES), most=2))
    def steps(self, change: Program) -> None:
        self.pair.change(_stepping(change))
        self.pair.settle()

    @rule(change=st.sampled_from(CHANGES), a=_number, b=_number, c=_number, first=st.sampled_from(_FIRST))
    def change(self, change: Change, a: int, b: int, c: int, first: str) -> None:
        if first == "renewed":
            self.pair.renew()
        elif first == "forgotten":
            self.pair.lifted.clear_cache()
            assert self.pair.lifted.stats() == (0, 0, 0, 0, 0)
        self.pair.change(_with(change, a, b, c))
        self.pair.settle()


TestMachine = Machine.TestCase
TestMachine.settings = settings(examples(25), stateful_step_count=6)


def _small() -> Blueprint:
    """A module with a module, a list, a variable with a tree, and a tuple."""
    array, tree = Leaf(1, (2,)), Tree("dict", (Leaf(2, ()), Leaf(3, (2,))))
    return Blueprint(
        (
            Object("box", (("a", Link(1)), ("b", Link(2)), ("c", Tree("tuple", (Link(3), Fixed(0)))), ("n", Fixed(7)))),
            Object("box", (("w", Link(4)), ("a", Fixed(0)))),
            Object("list", ((0, Link(3)), (1, Link(4)))),
            Object("param", (("value", array),)),
            Object("stat", (("value", tree),)),
        ),
        (Link(0), array),
    )


_DIRECTED: dict[str, Callable[[Any], None]] = {
    **{f"plainly {change.__name__}": _with(change, 1, 1, 1) for change in CHANGES},
    **{step.__name__: _stepping(Program((Step(step.__name__, 1, 1, 1),), "nothing", 0)) for step in STRUCTURE},
}


@pytest.mark.parametrize("change", _DIRECTED.values(), ids=_DIRECTED)
@pytest.mark.parametrize("blueprint", [_small(), _without_arrays(_small())], ids=["mixed", "plain"])
@pytest.mark.parametrize("transform", ["jit", "a loss"])
def test_each_change_meets_a_plan_and_a_new_one_is_followed(
    transform: str, blueprint: Blueprint, change: Callable[[Any], None]
) -> None:
    pair = _Pair(blueprint, Program((Step("write", 0, 1, 1), Step("read", 1, 0, 0)), "number", 0), transform)
    assert [pair.call() for _ in range(4)] == [False, False, True, True]
    assert pair.renew()
    pair.change(change)
    pair.call()
    assert pair.settle()
