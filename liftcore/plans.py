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

from liftcore import captures, functions, registry
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


def _recalled(roots: Sequence[Any]) -> list[Known] | None:
    """What was known of each of these objects before; None if nothing was of one."""
    known = []
    for root in roots:
        memory = _memory(root)
        if memory is None or memory.known is None:
            return None
        known.append(memory.known)
    return known


# So many leaves of an argument tell by their kinds which program is meant. A program that fits none but these few kinds
# is found out by JAX, which then traces.
_MARKS = 8


class _Form(Generic[B]):
    """How the arguments of some calls are passed, and what they are.

    Attributes:
      signature: how they are passed.
      plans: by the serial numbers of what is known of the objects in them, and by the kinds of some leaves.
      take: takes arguments apart; None if they have another form.
    """

    def __init__(self, signature: Hashable, values: Sequence[Any], parts: Sequence[Part]) -> None:
        self.signature = signature
        self.plans: dict[tuple[tuple[int, ...], tuple[Hashable, ...]], _Plan[B]] = {}
        self.take = Shape([branches(part.region.ops)[0] for part in parts], values).take
        counts = [len(part.region.leaf_keys) for part in parts]
        starts = itertools.accumulate(counts, initial=0)
        marks = [start + at for start, count in zip(starts, counts, strict=False) for at in range(min(count, _MARKS))]
        self._marks = picker(marks, sum(counts))

    def find(self, serials: tuple[int, ...], leaves: Sequence[Any]) -> _Plan[B] | None:
        """The plan for arguments of this form, with these leaves."""
        plans = self.plans
        if len(plans) == 1:  # where it is not for leaves of these kinds, JAX finds out
            only, *_ = tuple(plans)  # another thread may add one now
            return plans.get(only) if only[0] == serials else None
        return plans.get((serials, self.kinds(leaves)))

    def kinds(self, leaves: Sequence[Any]) -> tuple[Hashable, ...]:
        """Kinds of some of these leaves."""
        return _kinds(self._marks(leaves))


def _kinds(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple([(leaf.dtype, leaf.shape) for leaf in leaves])
    except AttributeError:  # a Python number has neither, and its type is in the shape
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
    _statics: Sequence[Any]
    _roots: Sequence[Any]
    _known: Sequence[Known]

    @property
    def program(self) -> B:
        """The program."""
        return self.plan.program

    def objects(self) -> Sequence[Any]:
        """All objects, by number."""
        graphs = [self._known[index].objects(self._roots[index]) for index in self.plan.distinct]
        return self.plan.pick_objects(graphs[0] if len(graphs) == 1 else list(itertools.chain.from_iterable(graphs)))

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
        index, number, position = source
        return self._statics[position] if index is None else self._known[index].parts[number].values[position]


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
      values: where each static value comes from: which graph, which object in it, and which value of it; or None, 0,
        and which of the arguments' own.
      writable: whether all objects may be written, so that none is asked again.
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
    values: Sequence[tuple[int | None, int, int] | None]
    writable: bool


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
        self._forms: tuple[_Form[B], ...] = ()
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
                return self._follow(form, taken)
        return None

    def _follow(self, form: _Form[B], taken: Taken) -> Match[B] | None:
        roots, known = taken.objects, _recalled(taken.objects)
        if known is None:
            return None
        plan = form.find(tuple([one.serial for one in known]), taken.leaves)
        if plan is None or plan.version != registry.families.version or not plan.watch.holds():
            return None
        if plan.captured:
            hidden = [get() for get, _ in plan.captured]
            more = _recalled(hidden)
            if more is None or [one.serial for one in more] != [serial for _, serial in plan.captured]:
                return None
            roots, known = [*roots, *hidden], [*known, *more]
        found: Sequence[Any] = ()
        for index in plan.distinct:
            now = known[index].leaves(roots[index])
            if now is None:
                _memory(roots[index]).missed()  # type: ignore[union-attr]
                return None
            found = [*found, *now] if found else now
        leaves = plan.pick_leaves(found)
        leaves = [*leaves, *taken.leaves] if leaves else taken.leaves
        return Match(plan, leaves, taken.statics, roots, known)

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
    ) -> tuple[_Form[B], tuple[Hashable, ...]]:
        """The form of these arguments, and the kinds by which a plan is found in it."""
        for form in self._forms:
            if form.signature == signature and (taken := form.take(values)) is not None:
                return form, form.kinds(taken.leaves)
        form = _Form(signature, values, tops)
        taken = form.take(values)
        if taken is None:  # a value that is not equal to itself
            raise Unguarded
        return form, form.kinds(taken.leaves)


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
    position = itertools.count()
    values: list[tuple[int | None, int, int] | None] = [
        None if kind is Op.TREE else (None, 0, next(position))
        for part in tops
        for kind in part.region.kinds_of_values()
    ]
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
        all(map(_may_be_written, forest.objects)),
    )


def _may_be_written(obj: Any) -> bool:
    kind = kind_of(type(obj))
    if isinstance(kind, Reference):
        try:
            kind.check_write(obj)
        except Exception:  # a family's own
            return False
    return True
