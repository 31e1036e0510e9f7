"""Random small programs on object graphs: reads, writes, and every change of structure that Python allows.

A step names what it works on by number, counted in the graph as it is then, so that a program runs on any graph, and
does the same on graphs that are alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from liftcore_plugins.objects import BatchStat, Module, Param, Variable
from tests.property.graphs import STATICS, Affine, Box, LoRA, Pair, Point
from tests.property.likeness import children, has_identity, is_leaf, objects

__all__ = ["READS", "RESULTS", "STRUCTURE", "WRITES", "Program", "Step", "call", "run", "take", "write"]

T = TypeVar("T")
NAMES = ("a", "b", "c", "n1", "n2")


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: what it does, and three numbers that say on what."""

    name: str
    a: int
    b: int
    c: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps, and which result is returned."""

    steps: tuple[Step, ...]
    result: str
    which: int


@dataclasses.dataclass
class World:
    """What a program sees: the objects in the order of a search, and the number that it has computed so far."""

    roots: Any
    out: Any
    inner: Callable[[Callable[..., Any]], Callable[..., Any]]

    def pick(self, number: int, *kinds: type) -> Any:
        """The object with this number among those of some kinds; None if there is none."""
        found = [obj for obj in objects(self.roots) if isinstance(obj, kinds)]
        return found[number % len(found)] if found else None


def one_of(options: Sequence[T], number: int) -> T:
    return options[number % len(options)]


def total(variable: Variable) -> Any:
    """The sum of all floating-point arrays in a variable."""
    result: Any = jnp.float32(0)
    pending = [(variable.value, "argument")]
    while pending:
        value, mode = pending.pop()
        if has_identity(value, mode):
            continue
        if is_leaf(value, mode) and jnp.issubdtype(jnp.result_type(value), jnp.floating):
            result = result + jnp.sum(value)
        pending += [(child, below) for _, child, below in children(value, mode) or []]
    return result


def _stepped(leaf: Any, amount: Any) -> Any:
    if isinstance(leaf, bool) or not is_leaf(leaf, "argument"):
        return leaf
    kind = jnp.result_type(leaf)
    if not jnp.issubdtype(kind, jnp.floating):
        return leaf + 1
    return (leaf * 0.5 + amount).astype(kind)


def write(world: World, a: int, b: int, c: int) -> None:
    """Writes a variable: another value of the same structure, from what another one holds."""
    target, source = world.pick(a, Variable), world.pick(b, Variable)
    if target is not None:
        amount = total(source) * 0.25 + world.out + c
        target.value = jax.tree.map(
            lambda leaf: _stepped(leaf, amount), target.value, is_leaf=lambda leaf: isinstance(leaf, (Variable, Module))
        )


def write_same(world: World, a: int, b: int, c: int) -> None:
    """Writes the value that is there."""
    if (target := world.pick(a, Variable)) is not None:
        target.value = target.value


def write_other(world: World, a: int, b: int, c: int) -> None:
    """Writes a value of another structure."""
    if (target := world.pick(a, Variable)) is not None:
        amount = total(target) + world.out
        values = [{"x": amount}, (amount, "text"), 3, jnp.ones(2) * amount, Affine(amount, ()), np.ones(2, np.float32)]
        target.value = one_of(values, c)


def take(world: World, a: int, b: int, c: int) -> None:
    """Writes another variable's value."""
    target, source = world.pick(a, Variable), world.pick(b, Variable)
    if target is not None:
        target.value = source.value


def read(world: World, a: int, b: int, c: int) -> None:
    """Reads a variable."""
    if (source := world.pick(a, Variable)) is not None:
        world.out = world.out + total(source) * 0.25


def metadata(world: World, a: int, b: int, c: int) -> None:
    """Sets metadata."""
    if (target := world.pick(a, Variable)) is not None:
        target.set_metadata(note=c)


def set_array(world: World, a: int, b: int, c: int) -> None:
    """Sets an attribute to an array."""
    setattr(world.pick(a, Box), one_of(NAMES, b), jnp.full(2, 1.0) * world.out)


def set_static(world: World, a: int, b: int, c: int) -> None:
    """Sets an attribute to a static value."""
    setattr(world.pick(a, Box), one_of(NAMES, b), one_of(STATICS, c))


def set_object(world: World, a: int, b: int, c: int) -> None:
    """Sets an attribute to an object of the graph: sharing and cycles."""
    setattr(world.pick(a, Box), one_of(NAMES, b), world.pick(c, object))


def set_new(world: World, a: int, b: int, c: int) -> None:
    """Sets an attribute to something new, which may hold what is there already."""
    amount, old = world.out + 1, world.pick(c, Box, Variable)
    makers: list[Callable[[], Any]] = [
        Box,
        lambda: Param(amount * jnp.ones(2), note=1),
        lambda: LoRA({"x": amount, "y": (amount, "text")}),
        lambda: BatchStat(jnp.zeros(2)),
        lambda: [Param(amount), old],
        lambda: {"k": [amount], "o": old},
        lambda: Affine(amount, (old, "text"), "other"),
        lambda: Pair(old, amount),
        lambda: Point(amount, [amount]),
        lambda: (old, old),
        lambda: old.method if isinstance(old, Box) else old,
    ]
    setattr(world.pick(a, Box), one_of(NAMES, b), one_of(makers, c)())


def delete(world: World, a: int, b: int, c: int) -> None:
    """Deletes an attribute."""
    contents = vars(world.pick(a, Box))
    if contents:
        del contents[one_of(list(contents), b)]


def swap(world: World, a: int, b: int, c: int) -> None:
    """Swaps two attributes, maybe of two modules."""
    one, other = vars(world.pick(a, Box)), vars(world.pick(c, Box))
    if one and other:
        mine, theirs = one_of(list(one), a + b), one_of(list(other), b)
        one[mine], other[theirs] = other[theirs], one[mine]


def change_list(world: World, a: int, b: int, c: int) -> None:
    """Appends, takes out or reverses."""
    if (target := world.pick(a, list)) is not None:
        match c % 4:
            case 0:
                target.append(world.out * jnp.ones(2))
            case 1:
                target.insert(0, world.pick(b, object))
            case 2 if target:
                target.pop(b % len(target))
            case _:
                target.reverse()


def change_dict(world: World, a: int, b: int, c: int) -> None:
    """Sets or deletes a key."""
    if (target := world.pick(a, dict)) is not None:
        match c % 4:
            case 0:
                target[one_of(NAMES, b)] = world.out * jnp.ones(2)
            case 1:
                target[one_of(NAMES, b)] = world.pick(a + b, object)
            case 2:
                target[b] = one_of(STATICS, a)
            case _ if target:
                del target[one_of(list(target), b)]


def call(world: World, a: int, b: int, c: int) -> None:
    """Does another step in a call of its own, on a part of the graph."""
    names = [step.__name__ for step in (*WRITES, *STRUCTURE)]
    # A list or dict that is returned is a copy, as in JAX, so that one may not become part of the graph.
    results = [result for result in RESULTS if result not in ("contents", "value")]
    program = Program((Step(one_of(names, b), c, b, c), Step(one_of(names, c), b, c, b)), one_of(results, a + c), b)
    world.out, result = world.inner(lambda box, x: run(program, (box,), x))(world.pick(a, Box), world.out)
    if c % 2:
        world.pick(b, Box).c = result


READS: tuple[Callable[..., None], ...] = (read, write_same)
WRITES: tuple[Callable[..., None], ...] = (write, take, set_array)
STRUCTURE: tuple[Callable[..., None], ...] = (
    write_other,
    metadata,
    set_static,
    set_object,
    set_new,
    delete,
    swap,
    change_list,
    change_dict,
)
_STEPS = {step.__name__: step for step in (*READS, *WRITES, *STRUCTURE, call)}

RESULTS = ("nothing", "number", "object", "pair", "new", "tree", "contents", "value")


def _ends(value: Any, depth: int = 8) -> bool:
    """Whether a value can be a tree: lists and dicts are copies then, and a cycle of copies has no end."""
    if has_identity(value, "argument"):
        return True
    return depth > 0 and all(_ends(child, depth - 1) for _, child, _ in children(value, "argument") or [])


def _result(world: World, kind: str, which: int) -> Any:
    obj = world.pick(which, Box, Variable)
    match kind:
        case "nothing":
            return None
        case "number":
            return world.out
        case "object":
            return obj
        case "pair":
            return obj, {"again": [obj, world.out], "other": world.pick(which + 1, Box, Variable)}
        case "new":
            new = Box()
            vars(new).update(held=world.pick(which, object), count=world.out, own=Param(world.out))
            return new
        case "tree":
            return Affine(world.out, (obj, Pair(obj, "text")))
        case "contents":
            return {name: value for name, value in vars(world.pick(which, Box)).items() if _ends(value)}
        case _:
            variable = world.pick(which, Variable)
            return None if variable is None else variable.value


def run(
    program: Program, roots: Any, x: Any, inner: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f
) -> tuple[Any, Any]:
    """Runs a program on a graph.

    Args:
      program: the steps.
      roots: what leads to the graph; there is a Box in it.
      x: where the number that it computes starts.
      inner: transforms the function of an inner call.

    Returns:
      The number, and the result.
    """
    world = World(roots, x, inner)
    for step in program.steps:
        _STEPS[step.name](world, step.a, step.b, step.c)
    return world.out, _result(world, program.result, program.which)
