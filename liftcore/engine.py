"""One lifted call: bind, split, run JAX, merge.

`lift` is the only door. A lifted function keeps one *program* for each structure of arguments: specs of all leaves, the
layout of the buckets, and what the transform built around the pure function, so that JAX's caches are hit by the next
call.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import captures, functional, prefixes, registry, statics
from liftcore.aliasing import Assignment
from liftcore.binding import Bound, Target
from liftcore.buckets import Bucket, Layout, Opaque
from liftcore.captures import Frame, entered
from liftcore.departure import Arrival, depart, merge
from liftcore.errors import (
    CaptureError,
    LiftError,
    PrefixError,
    StructureError,
    TransformTypeError,
    TransformValueError,
    warn,
)
from liftcore.families import kind_of
from liftcore.functions import Wrapper
from liftcore.paths import CAPTURED, Path, text
from liftcore.plans import Match, Plans, Stats
from liftcore.protocol import STATIC, Arguments, Call, LiftSpec, Program, Reference, Site, Spec
from liftcore.structure import Forest, Found, Place, build
from liftcore.walk import Static, Walk

__all__ = ["BoundLifted", "Lifted", "Prepared", "lift"]

L = TypeVar("L", bound="Lifted")


@dataclasses.dataclass(slots=True)
class _Cache:
    """What is kept for one function, as long as the function lives.

    Attributes:
      programs: by everything that a program depends on.
      reported: captured cells that the function was seen to read, by the order in which they were, held weakly.
      recounted: how often a static number changed in a call that had to be traced, by attribute.
      plans: of each transform with its options.
    """

    programs: dict[tuple[Hashable, ...], _Built] = dataclasses.field(default_factory=dict)
    reported: weakref.WeakValueDictionary[int, Any] = dataclasses.field(default_factory=weakref.WeakValueDictionary)
    recounted: dict[str, int] = dataclasses.field(default_factory=dict)
    plans: dict[Hashable, Plans[_Built]] = dataclasses.field(default_factory=lambda: collections.defaultdict(Plans))

    def cells(self) -> tuple[Any, ...]:
        """The captured cells that are still alive."""
        with _lock:
            return tuple(self.reported.values())

    def recount(self, call: Call, numbers: Sequence[str]) -> None:
        """Warns of a static number that changes again and again, since each value is a program of its own."""
        for number in numbers:
            self.recounted[number] = self.recounted.get(number, 0) + 1
            if self.recounted[number] == _OFTEN:
                warn(
                    f"{call}: {number} is a Python number that changed in {_OFTEN} calls, and each time the function "
                    "was traced and compiled anew: a number in an object is a static value.\n"
                    f"Way out: Make it an array, or put it into a lift.Variable: {number} = lift.Variable(0).",
                )

    def report(self, cells: Mapping[int, Any]) -> None:
        """Notes captured cells, so that the next try has them as hidden inputs."""
        with _lock:
            known = set(map(id, self.reported.values()))
            self.reported.update({next(_serial): cell for number, cell in cells.items() if number not in known})

    def serials(self, cells: Sequence[Any]) -> tuple[int, ...]:
        """What tells these cells from others that a program may have been made with; never used again, as an id is."""
        with _lock:
            numbers = {id(cell): number for number, cell in self.reported.items()}
        return tuple(numbers[id(cell)] for cell in cells)

    def keep(self, key: tuple[Hashable, ...], built: _Built) -> _Built:
        """Keeps a program, unless another thread was faster; the oldest go when there are many."""
        with _lock:
            while len(self.programs) >= _MOST:
                del self.programs[next(iter(self.programs))]
            return self.programs.setdefault(key, built)

    def forget(self, transform: Hashable) -> None:
        """Forgets the programs of one transform with its options."""
        with _lock:
            for key in self.of(transform):
                del self.programs[key]

    def of(self, transform: Hashable) -> list[tuple[Hashable, ...]]:
        """Keys of the programs of one transform with its options."""
        with _lock:
            return [key for key in self.programs if key[0] == transform]


# So many calls that change a static number are no accident.
_OFTEN = 4

# So many programs a function; JAX keeps as many traces.
_MOST = 4096

# So many times a function is traced with more and more captured cells as hidden inputs, level by level.
_TRIES = 16

_serial = itertools.count()
_lock = threading.RLock()
_caches: weakref.WeakKeyDictionary[Any, _Cache] = weakref.WeakKeyDictionary()


def _cache_of(function: Any) -> _Cache:
    """The cache of a function, shared by all that wrap it; its own where the function cannot be held weakly."""
    with _lock:
        try:
            return _caches.setdefault(getattr(function, "__func__", function), _Cache())
        except TypeError:
            return _Cache()


@dataclasses.dataclass(slots=True)
class _Built:
    """A program: the input side, where each leaf travels, and the function that the transform made.

    Attributes:
      arrival: structure and specs.
      specs: of each leaf.
      gathers: names and leaf numbers of each bucket.
      enters: by bucket, positions of the leaves that are changed on entering, and how.
      kinds: kind of each leaf.
      arguments: how they were passed.
      run: what the transform made.
    """

    arrival: Arrival
    specs: tuple[Spec, ...]
    gathers: tuple[tuple[Layout, tuple[int, ...]], ...]
    enters: tuple[tuple[int, tuple[tuple[int, Callable[[Any], Any]], ...]], ...]
    kinds: tuple[tuple[Any, ...], ...]
    arguments: Arguments
    run: Callable[..., Any]


class _Active(threading.local):
    """Calls of this thread that are running, innermost last: a trace takes its static values from them."""

    def __init__(self) -> None:
        self.calls: list[Prepared | _Planned] = []


_active = _Active()


@contextlib.contextmanager
def _running(prepared: Prepared) -> Iterator[None]:
    _active.calls.append(prepared)
    try:
        yield
    finally:
        _active.calls.pop()


class _Again(BaseException):
    """A trace read captured cells that are not hidden inputs yet: it is made again, with them."""


class _Stale(BaseException):
    """JAX traces the user's function since a plan is not for these arguments: the call is made again without it."""


class _Pure:
    """The function of arrays that JAX gets: merges, calls the user's function, and splits again."""

    def __init__(self, spec: LiftSpec, index: int, cache: _Cache, plans: Plans[_Built], name: str) -> None:
        self._spec, self._index, self._cache, self._plans = spec, index, cache, plans
        self.built: _Built | None = None
        self.__name__ = self.__qualname__ = name

    def __call__(self, *buckets: Bucket) -> tuple[tuple[Bucket, ...], Opaque]:
        built = self.built
        assert built is not None
        prepared = next((call for call in reversed(_active.calls) if call.built is built), None)
        if prepared is None:
            raise StructureError(
                str(built.arrival.call),
                where="JAX traced the function again after the lifted call had ended",
                why="Its arguments are not known any more.",
                ways=["Trace within the call: wrap the whole computation in the outer transform."],
            )
        if isinstance(prepared, _Planned):
            prepared = prepared.split()
        self._plans.traces += 1
        arrival, call = built.arrival, built.arrival.call
        leaves: list[Any] = [None] * len(built.specs)
        for bucket, (_, numbers) in zip(buckets, built.gathers, strict=True):
            for number, leaf in zip(numbers, bucket.leaves, strict=True):
                leaves[number] = built.specs[number].arrive(leaf, call)
        values = prepared.values
        hidden: dict[int, Any] = {}
        frame = Frame(call, hidden, prepared.passed())
        with entered(frame):
            forest = prepared.forest
            parts = [found.part for found in forest.found]
            inside = build({name: found.part for name, found in forest.roots.items()}, parts, leaves)
            functions, cells = inside.roots[CAPTURED]
            hidden.update(zip(map(id, prepared.cells), cells, strict=True))
            try:
                out = prepared.bound.apply(functions[self._index], inside.roots)
            except Exception as error:
                prepared.raised = error
                raise
            passed = prepared.bound.arguments
            outs, departure = depart(arrival, self._spec, passed, inside, parts, leaves, values, out)
        if frame.missing:
            # Nothing of this try may remain, neither in JAX's caches nor in a trace around it.
            self._cache.report(frame.missing)
            raise _Again
        return outs, Opaque(departure)


def _kind_of_leaf(leaf: Any) -> tuple[Any, Any, bool, bool]:
    """What specs may depend on besides the structure: dtype, shape, whether it is NumPy's, whether a Ref."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return (type(leaf), None, False, False)
    return (dtype, leaf.shape, isinstance(leaf, (np.ndarray, np.generic)), isinstance(leaf, jax.Ref))


def _read_only(leaf: Any) -> Any:
    # JAX hands NumPy arrays on as they are where nothing is mapped: a write inside would reach the caller's array.
    if type(leaf) is np.ndarray and leaf.flags.writeable:
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def _entered(spec: Spec, call: Call, leaf: Any) -> Any:
    return spec.enter(_read_only(leaf), call)


@dataclasses.dataclass(slots=True)
class Prepared:
    """One call, split and ready to run.

    Attributes:
      built: its program.
      bound: its arguments.
      forest: what they were taken apart into.
      leaves: all leaves, by number.
      values: all static values, by number.
      cells: captured cells that are hidden inputs.
      fresh: whether the program was made for this call.
      raised: the exception of the user's function, if it raised.
    """

    built: _Built
    bound: Bound
    forest: Forest
    leaves: list[Any]
    values: list[Any]
    cells: tuple[Any, ...]
    fresh: bool
    raised: BaseException | None = None

    def types(self) -> dict[str, str]:
        """Dtype and shape of every leaf by its name, as text."""
        names = [
            text(place.root, place.path + key) for place, _, found in self.forest for key in found.part.region.leaf_keys
        ]
        return {
            name: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
            for name, leaf in zip(names, self.leaves, strict=True)
        }

    @property
    def call(self) -> Call:
        """The lifted call, for messages."""
        return self.built.arrival.call

    @property
    def function(self) -> Callable[..., Any]:
        """What the transform made: a function of `buckets()`."""
        return self.built.run

    @property
    def program(self) -> object:
        """Stands for the program: the same for two calls with arguments of one structure."""
        return self.built

    def buckets(self) -> tuple[Bucket, ...]:
        """The leaves as JAX gets them."""
        call, specs, leaves = self.built.arrival.call, self.built.specs, self.leaves
        return tuple(
            Bucket([specs[number].enter(_read_only(leaves[number]), call) for number in numbers], layout)
            for layout, numbers in self.built.gathers
        )

    def passed(self) -> dict[int, Place]:
        """Where each cell was passed, by id."""
        return {
            id(obj): place
            for place, obj, _ in self.forest
            if place.root != CAPTURED and obj is not None and isinstance(kind_of(type(obj)), Reference)
        }

    def is_own(self, error: Exception) -> bool:
        """Whether the user's function raised this, which is forgotten then, with all that its traceback holds."""
        own, self.raised = error is self.raised, None
        return own

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Within this context the program may be traced."""
        return _running(self)

    def done(self, outs: Sequence[Any]) -> _Done:
        """What `LiftSpec.finish` gets, from what the function returned."""
        buckets, opaque, *extra = outs
        run = functools.partial(
            merge,
            opaque.value,
            self.built.arrival,
            buckets,
            lambda: self.forest.objects,
            self.leaves.__getitem__,
            self.values.__getitem__,
        )
        return _Done(self.bound.arguments, tuple(extra), self.built, self.bound.values, opaque.value.numbers, run)


class _Planned:
    """One call that goes by a plan.

    Args:
      found: what the plan says.
      values: the arguments.
      lifted: what is called.
      args: its positional arguments.
      kwargs: its keyword arguments.
    """

    __slots__ = ("_args", "_found", "_kwargs", "_lifted", "_prepared", "_values", "built")

    def __init__(
        self,
        found: Match[_Built],
        values: Sequence[Any],
        lifted: Lifted,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.built = found.program
        self._found, self._values = found, values
        self._lifted, self._args, self._kwargs = lifted, args, kwargs
        self._prepared: Prepared | None = None

    def split(self) -> Prepared:
        """The same call taken apart, to be traced: objects are what the plan knows, arguments are looked at again.

        Raises:
          _Stale: the program is not for these arguments.
        """
        if self._prepared is None and not self.is_stale():
            self._prepared = self._lifted.split(self._args, self._kwargs, self._found)
        if self._prepared is None:
            raise _Stale
        return self._prepared

    def is_own(self, error: Exception) -> bool:
        """Whether the user's function raised this."""
        return self._prepared is not None and self._prepared.is_own(error)

    @property
    def call(self) -> Call:
        """The lifted call, for messages."""
        return self.built.arrival.call

    def values(self) -> dict[str, Any]:
        """The arguments by name."""
        passed = self.built.arguments
        names = (*(() if passed.bound is None else (passed.bound,)), *passed.positional, *passed.keywords)
        return dict(zip(names, self._values, strict=True))

    def is_stale(self) -> bool:
        """Whether the leaves are of other kinds than the program's."""
        kinds = self.built.kinds
        return tuple(_kind_of_leaf(self._found.leaf(number)) for number in range(len(kinds))) != kinds

    def buckets(self) -> list[Bucket]:
        """The leaves as JAX gets them."""
        leaves, built = self._found.leaves, self.built
        buckets = [
            Bucket(pick(leaves), layout)
            for pick, (layout, _) in zip(self._found.plan.buckets, built.gathers, strict=True)
        ]
        for index, entering in built.enters:
            changed = list(buckets[index].leaves)
            for position, enter in entering:
                changed[position] = enter(changed[position])
            buckets[index].leaves = changed
        return buckets

    def merge(self, outs: Sequence[Any], write: bool = True) -> tuple[Mapping[str, Any], Any]:
        """Merges what the program returned."""
        found, departure = self._found, outs[1].value
        arrival = self.built.arrival
        checked = found.plan.writable
        return merge(departure, arrival, outs[0], found.objects, found.leaf, found.value, write=write, checked=checked)

    def done(self, outs: Sequence[Any]) -> _Done:
        """What `LiftSpec.finish` gets, from what the function returned."""
        run = functools.partial(self.merge, outs)
        return _Done(self.built.arguments, tuple(outs[2:]), self.built, self.values(), outs[1].value.numbers, run)


@dataclasses.dataclass(slots=True)
class _Done:
    """See `liftcore.protocol.Done`."""

    passed: Arguments
    extra: tuple[Any, ...]
    _built: _Built
    _values: Mapping[str, Any]
    numbers: tuple[str, ...]
    _merge: Callable[..., tuple[Mapping[str, Any], Any]]

    def merge(self, write: bool = True) -> tuple[Mapping[str, Any], Any]:
        replaced, out = self._merge(write=write)
        return {**self._values, **replaced}, out

    def pack(self, name: str, bucket: Hashable, leaves: Sequence[Any]) -> Any:
        arrival = self._built.arrival
        found: dict[Path, Any] = {}
        if bucket in arrival.layouts:
            numbers = dict(zip(arrival.layouts, self._built.gathers, strict=True))[bucket][1]
            paths = list(arrival.paths())
            found = {
                paths[number][1]: leaf for number, leaf in zip(numbers, leaves, strict=True) if paths[number][0] == name
            }
        return functional.pack(self._values[name], found)


# How JAX names a leaf of a bucket: the pure function's parameter and index, and then the bucket's own name for it.
_ARGUMENT = re.compile(r"\w+(\[\d+\])* `(?P<path>[^`]+)`")


# Errors of JAX where Python wants the value of a tracer.
_WANTS_A_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# How JAX names what it traces: the pure function, which says nothing to the user.
_TRACING = re.compile(r"tracing the function .+? for \w+")
# What a running program raises, such as a host callback that failed, begins with the name of a status.
_STATUS = re.compile(r"[A-Z_]{4,}: ")


def _translated(error: Exception, call: Call, values: Mapping[str, Any], own: bool) -> Exception | None:
    """The error to raise instead of one of JAX's; None if it is the user's, or ours."""
    if isinstance(error, LiftError):
        return None
    words = _ARGUMENT.sub(lambda match: match["path"], str(error))
    words = _TRACING.sub(f"tracing {call}", words)
    if isinstance(error, _WANTS_A_VALUE):
        match = _ARGUMENT.search(str(error))
        if match is None:
            return None
        parameter = re.split(r"[.\[]", match["path"])[0]
        ways = ["If it is data, stay in JAX: jnp.where or jax.lax.cond to choose, jnp functions in the place of np's."]
        if type(values.get(parameter)) in (bool, int, float, str, tuple):
            way = f'make it static: lift.jit(f, static_argnames="{parameter}")'
            ways.insert(0, f"If it decides which program is compiled, {way}.")
        elif parameter not in values:
            ways.append(f"{parameter} is captured: close over Python numbers, not over arrays that Python looks at.")
        return TransformTypeError(
            str(call),
            where=f"argument {parameter}: {match['path']} is traced, and Python wants its value",
            found=[words.strip()],
            ways=ways,
        )
    if own:
        return None
    for original, ours in ((TypeError, TransformTypeError), (ValueError, TransformValueError)):
        if isinstance(error, original) and not _STATUS.match(str(error)):
            return ours(str(call), where="refused", found=[words.strip()])
    error.add_note(f"In {call}.")
    return None


class BoundLifted(Wrapper):
    """A lifted function of a class body, bound to an object: its first argument.

    Args:
      lifted: the function.
      obj: the object.
    """

    def __init__(self, lifted: Lifted, obj: Any) -> None:
        self.functions = (lifted, obj)
        self.__func__, self.__self__ = lifted, obj
        self.__wrapped__ = types.MethodType(lifted, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with the object first."""
        return self.__func__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.__func__, name)
        return functools.partial(attribute, self.__self__) if name in self.__func__.methods else attribute

    def __repr__(self) -> str:
        return f"{self.__func__!r} of {self.__self__!r}"

    def around(self, functions: Sequence[Any]) -> BoundLifted:
        """The same method of another object."""
        lifted, obj = functions
        return BoundLifted(lifted, obj)

    def key(self) -> Hashable:
        """Nothing besides its parts."""
        return ()


class Lifted(Wrapper):
    """A lifted function.

    Args:
      functions: the user's function (several for branches).
      spec: the transform.

    Attributes:
      methods: names of the methods that take the function's arguments.
    """

    methods: ClassVar[frozenset[str]] = frozenset(("prepare",))

    def __init__(self, functions: tuple[Callable[..., Any], ...], spec: LiftSpec) -> None:
        self.functions = functions
        # Of several functions each keeps the object that it is bound to: they are taken apart as captured ones.
        self._targets = tuple(Target(function, implicit=len(functions) == 1) for function in functions)
        self._spec = spec
        options = spec.key
        if options is None:
            options = tuple(getattr(spec, field.name) for field in dataclasses.fields(spec))
        self._key = (spec.name, statics.key(options))
        self._plain = spec.finish is LiftSpec.finish
        self._cache = _cache_of(self._targets[0].function)
        # Of branches, only the first tells whose cache it is.
        self._plans: Plans[_Built] = self._cache.plans[self._key] if len(functions) == 1 else Plans()
        functools.update_wrapper(self, functions[0], updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function under the transform; the caller's objects are updated."""
        plans, owner = self._plans, self._targets[0].owner
        values: tuple[Any, ...] = args if owner is None else (owner, *args)
        signature: Hashable = (owner is None, len(args))
        if kwargs:
            values, signature = (*values, *kwargs.values()), (owner is None, len(args), *kwargs)
        found = plans.find(signature, values)
        if found is not None:
            planned = _Planned(found, values, self, args, kwargs)
            outs = self._follow(planned)
            if outs is not None:
                plans.calls += 1
                plans.planned += 1
                return planned.merge(outs)[1] if self._plain else self._spec.finish(planned.done(outs))

        def run(prepared: Prepared) -> Any:
            if prepared.cells == self._cache.cells():
                functions, numbers = prepared.bound.values[CAPTURED][0], [some for _, some in prepared.built.gathers]
                plans.note(signature, values, functions, prepared.forest, CAPTURED, prepared.built, numbers)
            return prepared.function(*prepared.buckets())

        prepared, outs = self.traced(run, args, kwargs)
        plans.calls += 1
        return self.finish(prepared, outs)

    def _follow(self, planned: _Planned) -> Any:
        """Runs a planned call; None if it has to be made without the plan."""
        _active.calls.append(planned)
        try:
            return planned.built.run(*planned.buckets())
        except (_Stale, _Again):
            return None
        except Exception as error:
            if planned.is_stale():
                return None
            self._fail(error, planned.call, planned.values(), planned.is_own(error), planned.buckets())
        finally:
            _active.calls.pop()

    def stats(self) -> Stats:
        """Counts of calls, traces, programs and plans, of all that wrap the same function in the same way.

        Example:
          >>> from liftcore_plugins.transforms.jit import jit
          >>> f = jit(lambda x: x + 1)
          >>> for _ in range(4): _ = f(1.0)
          >>> f.stats()
          Stats(calls=4, planned=3, traces=1, programs=1, plans=1)
        """
        plans = self._plans
        return Stats(plans.calls, plans.planned, plans.traces, len(self._cache.of(self._key)), len(plans))

    def finish(self, prepared: Prepared, outs: Any) -> Any:
        """Merges what the program returned."""
        done = prepared.done(outs)
        if prepared.fresh and done.numbers:
            self._cache.recount(prepared.built.arrival.call, done.numbers)
        return self._spec.finish(done)

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        """In a class body: self is an ordinary first parameter."""
        return self if obj is None else BoundLifted(self, obj)

    def __deepcopy__(self, memo: Any) -> Lifted:
        return self  # as a function is

    def clear_cache(self) -> None:
        """Forgets all programs and plans of this function under this transform and its options, and the counts."""
        self._cache.forget(self._key)
        self._plans.clear()

    def around(self, functions: Sequence[Callable[..., Any]]) -> Lifted:
        """The same transform of other functions."""
        same = all(one is other for one, other in zip(functions, self.functions, strict=True))
        return self if same else type(self)(tuple(functions), self._spec)

    def key(self) -> Hashable:
        """The transform and its options, by value."""
        return self._key

    def __repr__(self) -> str:
        return f"<{self._spec.name} of {self._targets[0].name}>"

    def traced(
        self, run: Callable[[Prepared], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Prepared, Any]:
        """Prepares a call and runs something that traces it, such as the call itself or its lowering.

        Where the trace reads captured cells that are not hidden inputs, it is made again with them.

        Args:
          run: gets the prepared call.
          args: the call's positional arguments.
          kwargs: its keyword arguments.

        Returns:
          The prepared call and what `run` returned.
        """
        for _ in range(_TRIES):
            prepared = self.prepare(*args, **kwargs)
            try:
                with prepared.running():
                    result = run(prepared)
            except _Again:
                continue
            except Exception as error:
                own = prepared.is_own(error)
                self._fail(error, prepared.call, prepared.bound.values, own, prepared.buckets())
            return prepared, result
        raise CaptureError(
            str(prepared.call),
            where="a captured variable of a lifted call that has ended",
            found=["each time the function is traced it reads another one"],
            why="What is made in a lifted call, or passed to it, is gone after it: a rule that JAX runs later (the "
            "bwd of a custom_vjp) may not read it.",
            ways=["Hand the value on as an array: through the output, or the residuals of the rule."],
        )

    def _fail(
        self, error: Exception, call: Call, values: Mapping[str, Any], own: bool, buckets: Iterable[Bucket]
    ) -> NoReturn:
        """Raises what the user shall see."""
        if isinstance(error, RuntimeError) and (gone := [name for bucket in buckets for name in bucket.deleted()]):
            error.add_note(f"Deleted arrays, donated to an earlier call: {', '.join(gone)}.")
        translated = _translated(error, call, values, own)
        if translated is None:
            raise error
        raise translated from error

    def prepare(self, *args: Any, **kwargs: Any) -> Prepared:
        """Splits one call: its program, and the buckets to run it on."""
        call = Call(self._spec.name, self._targets[0].name, self._spec.size, self._spec.params)
        bound, prefix = self._bound(call, args, kwargs)
        if prefix.keys() != bound.values.keys():
            raise PrefixError(
                str(call),
                where="LiftSpec.ins of the transform",
                found=[
                    f"without a prefix: {', '.join(sorted(bound.values.keys() - prefix.keys())) or 'none'}",
                    f"no argument: {', '.join(sorted(prefix.keys() - bound.values.keys())) or 'none'}",
                ],
                why="It gives a prefix to every name in `arguments.names()`, and to no other.",
                ways=["Start with dict.fromkeys(arguments.names())."],
            )
        forest, cells = _taken_apart(call, bound, prefix)
        leaves = forest.leaves()
        kinds = tuple(map(_kind_of_leaf, leaves))
        key = (
            self._key,
            registry.families.version,
            (bound.arguments.positional, bound.arguments.keywords, bound.arguments.bound),
            forest.key(),
            kinds,
            self._cache.serials(cells),
        )
        built = self._cache.programs.get(key)
        fresh = built is None
        if built is None:
            built = self._cache.keep(key, self._build(call, bound, forest, prefix, kinds))
        return Prepared(built, bound, forest, leaves, forest.values(), cells, fresh)

    def _bound(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Bound, Mapping[str, Any]]:
        """The arguments by name, and their prefixes."""
        functions = tuple(target.function for target in self._targets)
        bound = self._targets[0].bind(call, args, kwargs, (functions, self._cache.cells()))
        return bound, self._spec.ins(bound.arguments)

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any], match: Match[_Built]) -> Prepared | None:
        """Splits a call that a plan is for, as `prepare` does, with objects as they are known.

        Returns:
          None if the program is not for these arguments.
        """
        built, objects = match.program, match.objects()
        arrival = built.arrival
        bound, prefix = self._bound(arrival.call, args, kwargs)
        places = [arrival.assigned[number].place for number in range(len(objects))]
        walk = Walk(str(arrival.call), objects, places)
        roots = {name: walk.argument(name, value) for name, value in _roots(bound, prefix).items()}
        if len(walk.objects) > len(objects) or any(
            roots[name].part.region != part.region for name, part in arrival.roots.items()
        ):
            return None
        leaves = match.all_leaves()
        own = iter(leaves[match.plan.own :])
        found = [Found(part, [next(own) for _ in part.region.leaf_keys], [], []) for part in match.parts()]
        forest = Forest(roots, walk.objects, found, places)
        _, cells = bound.values[CAPTURED]
        return Prepared(built, bound, forest, leaves, forest.values(), cells, fresh=False)

    def _build(
        self, call: Call, bound: Bound, forest: Forest, prefix: Mapping[str, Any], kinds: tuple[tuple[Any, ...], ...]
    ) -> _Built:
        spec = self._spec
        possible = self._possible(call, prefix)
        assignment = Assignment(call, "in", spec.spec, forest.objects, forest.found.__getitem__, CAPTURED)
        root_specs = {}
        for name, found in forest.roots.items():
            if prefix[name] is not STATIC:
                prefixes.check_fits(prefix[name], bound.values[name], call, name)
            root_specs[name] = assignment.argument(name, prefix[name], found)
        specs = [one for name in forest.roots for one in root_specs[name]]
        specs += [one for number in range(len(forest.objects)) for one in assignment.assigned[number].specs]
        names = [
            text(place.root, place.path + key) for place, _, found in forest for key in found.part.region.leaf_keys
        ]
        # Objects first, as they leave: XLA gives a donated buffer to the first output of its shape.
        own = sum(map(len, root_specs.values()))
        numbers: dict[Hashable, list[int]] = {}
        for number in (*range(own, len(specs)), *range(own)):
            numbers.setdefault(specs[number].bucket_in, []).append(number)
        layouts = {key: Layout.of(names[number] for number in some) for key, some in numbers.items()}
        arrival = Arrival(
            call,
            {name: found.part.bare() for name, found in forest.roots.items()},
            [found.part.bare() for found in forest.found],
            assignment.assigned,
            root_specs,
            CAPTURED,
            {
                number: (key, position)
                for key, some in numbers.items()
                for position, number in enumerate(some)
                if specs[number].carried and specs[number].bucket_out == key
            },
            layouts,
            tuple(dict.fromkeys(one.bucket_out for one in (*possible, *specs) if one.readonly is None)),
        )
        pures = tuple(
            _Pure(spec, index, self._cache, self._plans, target.name.rpartition(".")[2])
            for index, target in enumerate(self._targets)
        )
        run = spec.run(Program(pures, tuple(numbers), arrival.outs, call))
        entering = [
            tuple(
                (position, functools.partial(_entered, specs[number], call))
                for position, number in enumerate(some)
                if type(specs[number]).enter is not Spec.enter or kinds[number][2]
            )
            for some in numbers.values()
        ]
        enters = tuple((index, some) for index, some in enumerate(entering) if some)
        gathers = tuple((layouts[key], tuple(some)) for key, some in numbers.items())
        built = _Built(arrival, tuple(specs), gathers, enters, kinds, bound.arguments, run)
        for pure in pures:
            pure.built = built
        return built

    def _possible(self, call: Call, prefix: Mapping[str, Any]) -> list[Spec]:
        """Every spec that a prefix can give: out buckets are known before the call, since JAX wants its prefix then."""
        spec = self._spec
        sites = [(Site(call, "out", "return", (), None), spec.outs)]
        sites += [(Site(call, "in", name, (), None), tree) for name, tree in prefix.items() if tree is not STATIC]
        return [
            word if isinstance(word, Spec) else spec.spec(word, site)
            for site, tree in sites
            for word in prefixes.spellings(tree, spec.name)
        ]


def _roots(bound: Bound, prefix: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are taken apart: some are static as a whole."""
    return {name: Static(value) if prefix[name] is STATIC else value for name, value in bound.values.items()}


def _taken_apart(call: Call, bound: Bound, prefix: Mapping[str, Any]) -> tuple[Forest, tuple[Any, ...]]:
    """Takes the arguments apart; returns the captured cells that are hidden inputs too.

    What is captured and also passed, to this call or to one around it, stays outside: to read it is an error, to name
    it is not.
    """

    def walk(functions: Any, cells: tuple[Any, ...], outside: Container[int] = ()) -> Forest:
        return Walk(str(call), outside=outside).forest({**_roots(bound, prefix), CAPTURED: (functions, cells)})

    functions, cells = bound.values[CAPTURED]
    try:
        forest = walk(functions, cells)
    except CaptureError as error:
        if not error.passed_too:
            raise
        # It was passed around this call, and what leads to it cannot be seen without reading it.
        passed = {id(obj) for obj in walk(Static(functions), ()).objects}
        cells = tuple(cell for cell in cells if id(cell) not in passed and not captures.is_passed(cell))
        return walk(Static(functions), cells), cells
    outside = {id(obj) for obj in _passed_too(call, forest)}
    if outside:
        cells = tuple(cell for cell in cells if id(cell) not in outside)
        forest = walk(functions, cells, outside)
    return forest, cells


def _passed_too(call: Call, forest: Forest) -> list[Any]:
    """Captured objects that are passed as well, and those that lead to them.

    Raises:
      CaptureError: a family does not report reads, so that nobody could tell whether it is read.
    """
    captured = _reached(forest, {CAPTURED})
    if not captured:
        return []
    passed = _reached(forest, forest.roots.keys() - {CAPTURED})
    both = {number for number in captured if number in passed}
    for number in both:
        kind = kind_of(type(forest.objects[number]))
        if isinstance(kind, Reference) and kind.born is None:
            raise _unreported(call, forest.objects[number], forest)
    grown = True
    while grown:
        leading = {number for number in captured if both & {*forest.found[number].part.region.children}} - both
        both |= leading
        grown = bool(leading)
    return [forest.objects[number] for number in both]


def _reached(forest: Forest, names: Iterable[str]) -> dict[int, None]:
    """Numbers of the objects that some arguments lead to."""
    seen: dict[int, None] = {}
    pending = [number for name in names for number in forest.roots[name].part.region.children]
    while pending:
        number = pending.pop()
        if number not in seen:
            seen[number] = None
            pending.extend(forest.found[number].part.region.children)
    return seen


def _unreported(call: Call, obj: Any, forest: Forest) -> CaptureError:
    # Its family does not report reads, so that nobody could tell whether it is read.
    place = forest.places[forest.objects.index(obj)]
    return CaptureError(
        str(call),
        where=f"{place} is a captured {type(obj).__name__}",
        found=["the function closes over it", f"it is also passed as {place}"],
        why="Inside, the argument and the captured object would be two objects with two values.",
        ways=["Use the argument inside of the function instead of the captured object."],
    )


def lift(
    functions: Callable[..., Any] | tuple[Callable[..., Any], ...], spec: LiftSpec, into: type[L] | None = None
) -> L:
    """Lifts a function: the only door to the engine, for transforms of liftcore and of strangers alike.

    Args:
      functions: a function, bound method or callable object; a tuple of them for branches.
      spec: the transform.
      into: a subclass of `Lifted` with more methods.

    Returns:
      A lifted function.

    Raises:
      BindError: it is not callable.
    """
    several = functions if isinstance(functions, tuple) else (functions,)
    return cast("L", (into or Lifted)(several, spec))
