"""Plans: the fast way through a call on arguments that an earlier call has seen. They know no engine.

The arguments of a call are matched in two steps. A *form* knows how arguments are passed and what trees they are; in it
a *plan* is found by the kinds of their leaves and the serial numbers of what is known of the objects in them
(`liftcore.guards`). Where all guards hold, the plan says which program the engine would find by taking everything
apart, and gives the leaves in the order in which that program wants them. Otherwise there is no plan, and the engine
takes everything apart.

What is known of an object is kept in the object, and a plan refers to no argument, so that neither keeps a model alive.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from liftcore import captures, functions, registry, statics
from liftcore._jax import is_eager
from liftcore.buckets import Pick, picker
from liftcore.errors import LiftError
from liftcore.families import kind_of
from liftcore.guards import Known, Shape, Taken, Unguarded, branches
from liftcore.protocol import Notes, Reference
from liftcore.structure import Forest, Op, Part

__all__ = ["Match", "Plans", "Stats"]

B = TypeVar("B")

# So many forms a function, and plans a form; the oldest go.
_FORMS = 32
_PLANS = 256

# A graph that changes again and again is looked at this often, at least.
_RAREST = 64


class Memory:
    """What is noted on an object at the top of an argument.

    Attributes:
      known: what is known of its graph, if anything.
    """

    __slots__ = ("_misses", "_wait", "known")

    def __init__(self) -> None:
        self.known: Known | None = None
        self._misses = 0
        self._wait = 2

    def missed(self) -> None:
        """Notes that the graph changed: the more often it does, the longer nobody looks at it."""
        self.known = None
        self._wait = min(2**self._misses, _RAREST)
        self._misses += 1

    def look(self, root: Any) -> Known | None:
        """What is known of the object now; it is looked at if it was seen often enough."""
        if self.known is not None and self.known.leaves(root) is None:
            self.missed()
        if self.known is None:
            self._wait -= 1
            if self._wait > 0:
                return None
            try:
                self.known = Known(root)
            except Unguarded:
                self._wait = _RAREST
        return self.known


def _notes(obj: Any) -> Notes | None:
    kind = kind_of(type(obj))
    return None if kind is None else kind.notes


def _memory(obj: Any) -> Memory | None:
    notes = _notes(obj)
    return None if notes is None else notes.get(obj)


_LEAF, _OBJECT, _TREE, _STATIC = range(4)

# Leaves of the arguments, kinds of some of them, objects and trees. A program that fits none but these few kinds is
# found out by JAX, which then traces.
_Given = tuple[list[Any], tuple[Hashable, ...], list[Any], list[Taken]]

# So many leaves of a tree tell by their kinds which program is meant.
_MARKS = 8

# Positions of static values that stand in a tree among the arguments, or are an argument.
_OF_TREE, _ARGUMENT = -1, -2


class _Form:
    """How the arguments of some calls are passed, and what trees they are."""

    def __init__(self, signature: Hashable, values: Sequence[Any], parts: Sequence[Part]) -> None:
        self.signature = signature
        self.plans: dict[Hashable, Any] = {}
        self._matches: list[tuple[int, Any]] = []
        for value, part in zip(values, parts, strict=True):
            (top,) = branches(part.region.ops)
            match top.op[0]:
                case Op.LEAF:
                    self._matches.append((_LEAF, type(value)))
                case Op.OBJECT:
                    self._matches.append((_OBJECT, None))
                case Op.TREE:
                    self._matches.append((_TREE, Shape(top, value)))
                case _:
                    self._matches.append((_STATIC, statics.key(value)))

    def take(self, values: Sequence[Any]) -> _Given | None:
        """Takes arguments apart; None if they have another form."""
        leaves: list[Any] = []
        marks: list[Any] = []
        objects: list[Any] = []
        trees: list[Taken] = []
        for value, (what, expected) in zip(values, self._matches, strict=True):
            if what == _OBJECT:
                objects.append(value)
            elif what == _LEAF:
                if type(value) is not expected:
                    return None
                leaves.append(value)
                marks.append(value)
            elif what == _TREE:
                taken = expected.take(value)
                if taken is None:
                    return None
                leaves += taken.leaves
                marks += taken.leaves[:_MARKS]
                objects += taken.objects
                trees.append(taken)
            elif statics.key(value) != expected:
                return None
        return leaves, _kinds(marks), objects, trees


def _kinds(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple([(leaf.dtype, leaf.shape) for leaf in leaves])
    except AttributeError:  # a Python number has neither, and its type is in the form
        return tuple([(leaf.dtype, leaf.shape) if hasattr(leaf, "dtype") else None for leaf in leaves])


@dataclasses.dataclass(slots=True)
class Match(Generic[B]):
    """What a plan says about a call.

    Attributes:
      plan: the plan.
      leaves: all leaves: those of objects, by number, then those of arguments.
    """

    plan: _Plan[B]
    leaves: Sequence[Any]
    _arguments: Sequence[Any]
    _roots: Sequence[Any]
    _trees: Sequence[Taken]
    _known: Sequence[Known]

    @property
    def program(self) -> B:
        """The program."""
        return self.plan.program

    def objects(self) -> Sequence[Any]:
        """All objects, by number."""
        every = [obj for index in self.plan.distinct for obj in self._known[index].objects(self._roots[index])]
        return self.plan.pick_objects(every)

    def parts(self) -> Sequence[Part]:
        """Part of each object, by number."""
        return self.plan.pick_objects([part for index in self.plan.distinct for part in self._known[index].parts])

    def leaf(self, number: int) -> Any:
        """A leaf by its number in the whole forest, in which those of arguments come first."""
        own = self.plan.own
        return self.leaves[number - own if number >= own else number + len(self.leaves) - own]

    def all_leaves(self) -> list[Any]:
        """All leaves in the order of those numbers."""
        start = len(self.leaves) - self.plan.own
        return [*self.leaves[start:], *self.leaves[:start]]

    def value(self, number: int) -> Any:
        """A static value by its number in the whole forest."""
        source = self.plan.values[number]
        if source is None:
            raise LookupError(number)
        where, index, position = source
        if position == _ARGUMENT:
            return self._arguments[where]
        return self._trees[where].statics[index] if position < 0 else self._known[where].parts[index].values[position]


@dataclasses.dataclass(slots=True)
class _Plan(Generic[B]):
    """A call's arguments as they were, and what to do with others like them.

    Attributes:
      program: the program.
      version: of the families that were asked.
      watch: what a search of the functions finds.
      captured: the captured objects, weakly, with the serial number of what is known of each.
      distinct: positions among arguments and captured objects of those that are met first.
      pick_objects: the forest's objects from those of the distinct ones, one after the other.
      pick_leaves: their leaves likewise.
      buckets: leaves of each bucket, from all leaves: those of objects come first.
      own: number of leaves that belong to arguments.
      values: where each static value comes from.
    """

    program: B
    version: int
    watch: functions.Watch
    captured: Sequence[tuple[Callable[[], Any], int]]
    distinct: Sequence[int]
    pick_objects: Pick
    pick_leaves: Pick
    buckets: Sequence[Pick]
    own: int
    values: Sequence[tuple[int, int, int] | None]


class Stats(NamedTuple):
    """Counts of one lifted function: of one function under one transform with its options.

    Attributes:
      calls: calls that came back.
      planned: those of them that went by a plan.
      traces: how often the user's function was traced.
      programs: programs that are kept, one for each structure of arguments.
      plans: plans that are kept.
    """

    calls: int
    planned: int
    traces: int
    programs: int
    plans: int


class Plans(Generic[B]):
    """All plans of one lifted function.

    Attributes:
      calls, planned, traces: see `Stats`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forgets all plans and counts."""
        self._forms: tuple[_Form, ...] = ()
        self.calls = self.planned = self.traces = 0

    def __len__(self) -> int:
        return sum(len(form.plans) for form in self._forms)

    def find(self, signature: Hashable, values: Sequence[Any]) -> Match[B] | None:
        """Finds the plan for a call, with the leaves as they are now.

        Args:
          signature: how the arguments are passed.
          values: the arguments.

        Returns:
          None if there is no plan, or something is not what it was.
        """
        if not is_eager() or captures.token() is not None:
            return None
        for form in self._forms:
            if form.signature == signature and (taken := form.take(values)) is not None:
                return self._follow(form, values, *taken)
        return None

    def _follow(
        self,
        form: _Form,
        values: Sequence[Any],
        leaves: list[Any],
        kinds: tuple[Hashable, ...],
        roots: list[Any],
        trees: Sequence[Taken],
    ) -> Match[B] | None:
        memories = [_memory(root) for root in roots]
        known = [None if memory is None else memory.known for memory in memories]
        if None in known:
            return None
        plan = form.plans.get((tuple([one.serial for one in known]), kinds))  # type: ignore[union-attr]
        if plan is None:
            return None
        if plan.version != registry.families.version or not plan.watch.holds():
            return None
        for get, serial in plan.captured:
            root = get()
            memory = _memory(root)
            if memory is None or memory.known is None or memory.known.serial != serial:
                return None
            roots.append(root)
            memories.append(memory)
            known.append(memory.known)
        found: Sequence[Any] = ()
        for index in plan.distinct:
            now = known[index].leaves(roots[index])
            if now is None:
                memories[index].missed()
                return None
            found = [*found, *now] if found else now
        every = plan.pick_leaves(found)
        if leaves:
            every = [*every, *leaves]
        return Match(plan, every, values, roots, trees, known)  # type: ignore[arg-type]

    def note(
        self,
        signature: Hashable,
        values: Sequence[Any],
        functions_: Sequence[Any],
        forest: Forest,
        captured: str,
        program: B,
        buckets: Sequence[Sequence[int]],
    ) -> None:
        """Makes a plan from a call whose arguments were taken apart, if everything in it can be watched.

        Args:
          signature: how the arguments are passed.
          values: the arguments.
          functions_: what was lifted.
          forest: what was found.
          captured: name of the argument that holds what the functions capture.
          program: the program.
          buckets: numbers of the leaves in each bucket.
        """
        if not is_eager() or captures.token() is not None:
            return
        hidden = forest.roots[captured].part
        tops = [found.part for name, found in forest.roots.items() if name != captured]
        roots = [forest.objects[number] for part in (*tops, hidden) for number in part.region.children]
        known = _look(roots)
        if known is None or hidden.region.leaf_keys:
            return
        try:
            watch = functions.Watch(functions_)
            if not watch.possible:
                return
            form, kinds = self._form(signature, values, tops)
            key = (tuple(one.serial for one in known[: len(roots) - len(hidden.region.children)]), kinds)
            plan = _planned(forest, tops, hidden, roots, known, watch, program, buckets)
        except (Unguarded, LiftError):
            return
        with self._lock:
            while len(form.plans) >= _PLANS:
                del form.plans[next(iter(form.plans))]
            form.plans[key] = plan
            if form not in self._forms:
                self._forms = (form, *self._forms[: _FORMS - 1])

    def _form(
        self, signature: Hashable, values: Sequence[Any], tops: Sequence[Part]
    ) -> tuple[_Form, tuple[Hashable, ...]]:
        """The form of these arguments, and the kinds by which a plan is found in it."""
        for form in self._forms:
            if form.signature == signature and (taken := form.take(values)) is not None:
                return form, taken[1]
        form = _Form(signature, values, tops)
        taken = form.take(values)
        if taken is None:  # a value that is not equal to itself
            raise Unguarded
        return form, taken[1]


def _look(roots: Sequence[Any]) -> list[Known] | None:
    """What is known of these objects; None if it is not known of all."""
    looked: dict[int, Known | None] = {}
    for root in roots:
        if id(root) in looked:
            continue
        notes = _notes(root)
        if notes is None:
            return None
        memory = notes.get(root)
        if memory is None:
            memory = Memory()
            notes.set(root, memory)
        looked[id(root)] = memory.look(root)
    known = [one for root in roots if (one := looked[id(root)]) is not None]
    return known if len(known) == len(roots) else None


def _planned(
    forest: Forest,
    tops: Sequence[Part],
    hidden: Part,
    roots: Sequence[Any],
    known: Sequence[Known],
    watch: functions.Watch,
    program: B,
    buckets: Sequence[Sequence[int]],
) -> _Plan[B]:
    for obj in forest.objects:
        kind = kind_of(type(obj))
        if isinstance(kind, Reference):
            kind.check_write(obj)  # what may not be written now has no plan
    distinct = [index for index, root in enumerate(roots) if not any(root is other for other in roots[:index])]
    # Each object by its place among those that all graphs give, one after the other.
    places: dict[int, tuple[int, int]] = {}
    sizes: list[int] = []
    sources: dict[int, tuple[int, int]] = {}
    for index in distinct:
        for number, (identity, part) in enumerate(zip(known[index].order, known[index].parts, strict=True)):
            places.setdefault(identity, (len(sizes), len(part.region.leaf_keys)))
            sources.setdefault(identity, (index, number))
            sizes.append(len(part.region.leaf_keys))
    starts = list(itertools.accumulate(sizes, initial=0))
    where = [places[id(obj)] for obj in forest.objects]
    positions = [starts[place] + at for place, count in where for at in range(count)]
    own = sum(len(part.region.leaf_keys) for part in tops)
    count = own + len(positions)
    hanging = len(hidden.region.children)
    values: list[tuple[int, int, int] | None] = []
    tree = 0
    for argument, part in enumerate(tops):
        kinds = part.region.kinds_of_values()
        if part.region.ops[0][0] is Op.TREE:
            at = itertools.count()
            values += [None if kind is Op.TREE else (tree, next(at), _OF_TREE) for kind in kinds]
            tree += 1
        else:
            values += [(argument, 0, _ARGUMENT) for _ in kinds]
    values += [None] * len(hidden.values)
    for obj in forest.objects:
        index, number = sources[id(obj)]
        values += [(index, number, position) for position in range(len(known[index].parts[number].values))]
    return _Plan(
        program,
        registry.families.version,
        watch,
        [(weakref.ref(root), one.serial) for root, one in zip(roots, known, strict=True)][len(roots) - hanging :],
        distinct,
        picker([place for place, _ in where], len(sizes)),
        picker(positions, starts[-1]),
        [picker([n - own if n >= own else n + count - own for n in numbers], count) for numbers in buckets],
        own,
        values,
    )
