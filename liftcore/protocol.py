"""The lift protocol: data only, and all that a plugin's author needs to read.

A *family* says how the objects of one model library are taken apart and put together. A *lift type* is a prefix leaf
that decides leaf by leaf. A *spec* says what happens to one leaf at the boundary of a lifted call. A *transform* is a
`LiftSpec`: what a spelling means, how to call JAX, and what to return. The engine (`liftcore.lift`) does everything
else.

How-to pages: docs/how-to/.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import Any, Literal, Protocol

import jax.numpy as jnp
import numpy as np

from liftcore.paths import Path

__all__ = [
    "EMPTY",
    "PROTOCOL",
    "STATIC",
    "Arguments",
    "Call",
    "Case",
    "Done",
    "Family",
    "FamilyCase",
    "Filter",
    "LiftSpec",
    "LiftType",
    "Node",
    "Notes",
    "Path",
    "Program",
    "Reference",
    "Site",
    "Spec",
    "inexact_is_param",
]

#: Version of this protocol. A plugin's module of data names the one that it was written for.
PROTOCOL = 1

#: What picks leaves: see `liftcore.filters`.
Filter = type | str | bool | None | EllipsisType | Callable[..., bool] | Sequence[Any] | Any

EMPTY: Mapping[str, Any] = MappingProxyType({})


class _Static:
    def __repr__(self) -> str:
        return "STATIC"


#: Stands as the prefix of a whole argument that is a static value: its contents are part of the structure.
STATIC = _Static()


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One lifted call, as hooks see it.

    Attributes:
      transform: the transform's name, for messages and for lift types that differ by transform.
      function: the user function's name, for messages.
      size: length of the mapped axis, where the user said it; None otherwise.
      params: the user's `metadata_params`.
    """

    transform: str
    function: str
    size: int | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=lambda: EMPTY)

    def __str__(self) -> str:
        return f"{self.transform} of {self.function}"


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A leaf where the walk met it: all that a filter, a lift type or a spec sees.

    Attributes:
      call: the lifted call.
      side: "in" for an argument; "out" for an output, whose value has one axis fewer than outside in a mapped
        transform.
      root: the parameter's name, or "return".
      path: plain keys from the root.
      value: the array (or number); None where a spelling is asked about, and not yet a leaf.
      reference: the mutable cell that holds it; None for a leaf of a tree.
      owners: classes of the enclosing objects, outermost first.
      tags: the family's words for it, such as "param", "batch_stat", "rng_key" or a stream's name.
    """

    call: Call
    side: Literal["in", "out"]
    root: str
    path: Path
    value: Any
    reference: Any | None = None
    owners: tuple[type, ...] = ()
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Spec:
    """What happens to one leaf at the boundary. Subclass it to change a hook.

    `enter` and `arrive` split, `depart` and `exit` merge; each is the identity unless a subclass says otherwise.

    Attributes:
      bucket_in: leaves with the same key travel in one list; `LiftSpec.run` makes JAX's own prefix from the keys.
      bucket_out: the key under which it leaves when changed; the same as `bucket_in` for most.
      axis: axis (>= 0) of the outside value that the inside lacks; None if there is none.
      carried: leaves the call whether or not it was changed. Where `bucket_in` is `bucket_out`, it leaves in the very
        place where it entered, with the same structure (a loop's carry).
      readonly: why it may not be written, and the way out, as one text; None if it may.
      role: anything else in which aliases must agree among the inputs, such as "donated".
    """

    bucket_in: Hashable
    bucket_out: Hashable
    axis: int | None = None
    carried: bool = False
    readonly: str | None = None
    role: Hashable = None

    def among_inputs(self) -> Hashable:
        """What all paths to one shared object must agree on, among the arguments."""
        return (type(self).__name__, self.axis, self.carried, self.role)

    def across(self) -> Hashable:
        """What must agree also between an argument and an output that shares an object with it."""
        return self.axis

    def __str__(self) -> str:
        words = [f"axis {self.axis}"] if self.axis is not None else []
        words += [str(self.role)] if self.role is not None else []
        words += ["carried"] if self.carried and self.role is None else []
        return ", ".join(words) or "None"

    def enter(self, value: Any, call: Call) -> Any:
        """Outside, before JAX: the leaf as JAX shall see it."""
        return value

    def arrive(self, value: Any, call: Call) -> Any:
        """Inside, before the user's function."""
        return value

    def depart(self, value: Any, call: Call) -> Any:
        """Inside, after the user's function."""
        return value

    def exit(self, value: Any, call: Call) -> Any:
        """Outside, after JAX."""
        return value

    def written(self, site: Site) -> None:
        """Inside, once for each leaf that was changed, with the new value in the site; may warn or raise."""


class LiftType(abc.ABC):
    """A prefix leaf that decides by site. Instances are immutable and compare by value."""

    #: True if `resolve` looks at the path or the owners, so that each way to a shared object must be asked about.
    by_path: bool = False

    @abc.abstractmethod
    def values(self, transform: str) -> Sequence[Any]:
        """All that `resolve` can give under this transform; raises a `PrefixError` if it is not for it."""

    @abc.abstractmethod
    def resolve(self, site: Site) -> Any:
        """The spelling for this site: the transform's own (0, None, Carry), a `Spec`, or another lift type."""


def _no_metadata(cell: Any) -> Mapping[str, Any]:
    return EMPTY


def _set_no_metadata(cell: Any, metadata: Mapping[str, Any]) -> None:
    return None


def _may_be_written(cell: Any) -> None:
    return None


def _no_static(node: Any) -> frozenset[Hashable]:
    return frozenset()


def _tells_nothing(node: Any) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class Notes:
    """A place on each object of a class, where the engine keeps what it knows of it to call faster.

    It is no part of the object: not shown, copied, pickled or compared. What is in it dies with the object.

    Attributes:
      get: `get(obj) -> what was noted`, None at first.
      set: `set(obj, what)`.
    """

    get: Callable[[Any], Any]
    set: Callable[[Any, Any], None]


@dataclasses.dataclass(frozen=True)
class Reference:
    """A mutable cell with identity, which holds an array, a number or a pytree.

    Attributes:
      read: `read(cell) -> value`, raw, without hooks.
      write: `write(cell, value)`, raw.
      make: `make(cls, metadata) -> cell`, a new cell whose value is written later.
      metadata: `metadata(cell) -> mapping` of static values.
      set_metadata: `set_metadata(cell, mapping)`.
      born: `born(cell) -> token` of the lifted call in which the cell was made (`liftcore.captures.token`), for
        families whose cells report their reads and writes; None for the others.
      check_write: `check_write(cell)` raises if the cell may not be written here, such as under a plain JAX transform
        that it was captured by; asked before the engine writes a result back. Its answer depends on what is running and
        on the metadata: where it was yes, a plan does not ask again.
      notes: where plans are kept; None: calls with such a cell at the top of an argument have no plan.
      read_all: `read_all(cells) -> list`, as `read` of each, faster; None if there is no faster way.
      stamp: `stamp() -> value`, another one after the metadata of any cell was replaced; None if nobody keeps count.
        For plans, `metadata` gives the same mapping as long as nothing in it changed.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    make: Callable[[type, Mapping[str, Any]], Any]
    metadata: Callable[[Any], Mapping[str, Any]] = _no_metadata
    set_metadata: Callable[[Any, Mapping[str, Any]], None] = _set_no_metadata
    born: Callable[[Any], Any] | None = None
    check_write: Callable[[Any], None] = _may_be_written
    notes: Notes | None = None
    read_all: Callable[[Sequence[Any]], list[Any]] | None = None
    stamp: Callable[[], Hashable] | None = None


@dataclasses.dataclass(frozen=True)
class Node:
    """An object with children.

    Attributes:
      items: `items(obj) -> mapping` from keys to children, a live one where there is one (`vars`).
      make: `make(cls) -> obj`, empty, so that cycles can be rebuilt.
      fill: `fill(obj, mapping)` makes the object's contents exactly those.
      static: `static(obj) -> frozenset` of keys that are static whatever they hold.
      identity: False for a tree: immutable, copied, rebuilt rather than written.
      notes: where plans are kept; None: calls with such an object at the top of an argument have no plan. Plans also
        need `items` to give the object's own dict, in which every change is seen.
      stamp: `stamp() -> value`, another one after the structure of any object changed that tells its changes; None if
        none does. A change that nobody told is still seen, unless it puts an equal value in the place of another.
      tells: `tells(obj) -> bool`, whether this object tells its changes from now on. It is asked before the object is
        watched, and an object that was never asked need not tell.
    """

    items: Callable[[Any], Mapping[Any, Any]]
    make: Callable[[type], Any]
    fill: Callable[[Any, Mapping[Any, Any]], None]
    static: Callable[[Any], frozenset[Hashable]] = _no_static
    identity: bool = True
    notes: Notes | None = None
    stamp: Callable[[], Hashable] | None = None
    tells: Callable[[Any], bool] = _tells_nothing


def inexact_is_param(site: Site) -> frozenset[str]:
    """The tags of trees: floating-point and complex arrays (and Python floats) are "param", the rest has no tag."""
    value = site.value
    if isinstance(value, (float, complex)):
        return frozenset(("param",))
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, np.inexact):
        return frozenset(("param",))
    return frozenset()


def _not_adapted(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Family:
    """One model library.

    Attributes:
      name: import root of its classes; the family is loaded when a class with that root in its MRO is first met.
      kind: `kind(cls) -> Reference | Node | None`, asked once a class. None: JAX's own pytree registry decides.
      tags: `tags(site) -> frozenset` of words for a leaf of this family's objects.
      adapt: `adapt(value) -> value` turns the library's own lift types and filters into ours.
      pack: `pack(obj, {path: leaf}) -> container` of states, gradients and tangents, in which optax can work, for
        objects with identity: a pytree whose key paths are those paths; None for the default, `State`. A tree always
        keeps its shape, with None in the place of what was not picked.
    """

    name: str
    kind: Callable[[type], Reference | Node | None]
    tags: Callable[[Site], frozenset[str]] = inexact_is_param
    adapt: Callable[[Any], Any] = _not_adapted
    pack: Callable[[Any, Mapping[Path, Any]], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Which arguments one call has: what `LiftSpec.ins` gives prefixes to.

    Attributes:
      positional: names of the parameters passed by position, in order, the bound object left out.
      keywords: names of those passed by keyword.
      bound: name of the implicit argument (the object of a bound method, or a callable object), or None.
      captured: name of the hidden argument that holds captured references, or None.
      parameters: names of the function's positional parameters in order, the bound one left out (for argument numbers).
      call: for messages.
    """

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    bound: str | None
    captured: str | None
    parameters: tuple[str, ...]
    call: Call

    def names(self) -> tuple[str, ...]:
        """Names of all arguments, the bound object and the hidden one included."""
        implicit = (name for name in (self.bound, self.captured) if name is not None)
        return (*implicit, *self.positional, *self.keywords)


@dataclasses.dataclass(frozen=True)
class Program:
    """What `LiftSpec.run` gets, once for each structure of arguments.

    Attributes:
      pures: functions of buckets (one argument each, in the order of `ins`) that return (tuple of out buckets,
        structure), one for each user function. The structure is an output only: pass it on, under the prefix None.
      ins: keys of the buckets that come in, in order.
      outs: keys of the buckets that come out, in order.
      call: for messages.
    """

    pures: tuple[Callable[..., Any], ...]
    ins: tuple[Hashable, ...]
    outs: tuple[Hashable, ...]
    call: Call


class Done(Protocol):
    """What `LiftSpec.finish` gets after JAX has succeeded.

    Attributes:
      passed: how the arguments were passed.
      extra: what `run` returned beyond (out buckets, structure).
    """

    passed: Arguments
    extra: tuple[Any, ...]

    def merge(self, write: bool = True) -> tuple[Mapping[str, Any], Any]:
        """Updates the caller's objects; returns (arguments after the call, by name; output)."""

    def pack(self, name: str, bucket: Hashable, leaves: Sequence[Any]) -> Any:
        """Packs what stands in the places of one bucket's leaves (all of them, in order) for one argument."""


def _no_prefixes(arguments: Arguments) -> Mapping[str, Any]:
    return dict.fromkeys(arguments.names())


def _together(spelling: Any, site: Site) -> Spec:
    return Spec("all", "all")


def _keep(passed: Arguments, values: Mapping[str, Any], out: Any) -> tuple[Mapping[str, Any], Any]:
    return {}, out


def _output(done: Done) -> Any:
    return done.merge()[1]


@dataclasses.dataclass(frozen=True)
class LiftSpec:
    """A transform, as data.

    Attributes:
      name: the transform's name.
      run: `run(program) -> f`, where `f(*buckets) -> (out buckets, structure, *extra)`; called once for each
        structure of arguments, so that what it builds is cached.
      ins: `ins(arguments) -> {name: prefix}` for all names; see `liftcore.prefixes.by_parameter` and `selected`. By
        default each gets None.
      outs: prefix of the output.
      spec: `spec(spelling, site) -> Spec`, the meaning of a spelling. It is asked once for each spelling before there
        is a value (`site.value` is None; only the buckets matter then), and once for each leaf. By default all leaves
        travel in one bucket.
      key: the options of the user, which tell two uses of the transform apart, compared by value; None: all of these
        attributes, which costs more to compare.
      tie: `tie(passed, values, out) -> (replaced, out)` inside, after the user's function: arguments by name that a
        returned value replaces (a loop's carry), and what remains of the output. May refuse the output.
      finish: `finish(done) -> result` outside.
      size: length of the mapped axis, if the user gave it.
      params: the user's `metadata_params`.
    """

    name: str
    run: Callable[[Program], Callable[..., Any]]
    ins: Callable[[Arguments], Mapping[str, Any]] = _no_prefixes
    outs: Any = None
    spec: Callable[[Any, Site], Spec] = _together
    key: Hashable | None = None
    tie: Callable[[Arguments, Mapping[str, Any], Any], tuple[Mapping[str, Any], Any]] = _keep
    finish: Callable[[Done], Any] = _output
    size: int | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=lambda: EMPTY)


def _as_it_is(result: Any, arrays: Callable[[Any], Mapping[str, Any]]) -> Any:
    return result


@dataclasses.dataclass(frozen=True)
class Case:
    """An example from which the conformance matrix is made: a lifted transform, and plain JAX beside it.

    The matrix runs it on the model of every `FamilyCase`, eagerly, compiled and differentiated. A case has the name of
    its transform; a lift type of a stranger brings a case of its own name.

    Attributes:
      lift: `lift(f, prefix) -> lifted`, where `f(model, x) -> (y, model)` and `lifted(model, x) -> (result, model)`;
        x and y are [2, 3]. Where the transform cannot return the model, None stands for it.
      plain: `plain(f, picked) -> transformed`, the same in plain JAX, with {"kernel": [3, 3], "bias": [3]} for the
        model. Names in `picked` are those of the arrays that the prefix picks, such as the mapped ones; f writes no
        other.
      prefix: what `lift` gets for the model; picks all of its arrays.
      stacked: whether picked arrays get a new leading axis before the call.
      lift_types: what `lift` gets instead, for each lift type that the transform takes: `lift_types[name](cls)` picks
        the kernel only, by its rank: it is the one array with more axes than one, inside as outside.
      read: `read(result, arrays) -> result` as plain JAX returns it; `arrays(container)` takes a container of gradients
        or tangents apart, into the arrays that it has, by name.

    Example:
      >>> import jax, liftcore as lift
      >>> def plain(f, picked):
      ...     axes = {name: 0 if name in picked else None for name in ("kernel", "bias")}
      ...     return jax.vmap(f, in_axes=(axes, None), out_axes=(0, axes))
      >>> case = Case(
      ...     lift=lambda f, prefix: lift.vmap(f, in_axes=(prefix, None), out_axes=(0, prefix)),
      ...     plain=plain,
      ...     prefix=0,
      ...     stacked=True,
      ...     lift_types={"StateAxes": lambda cls: cls({lambda leaf: leaf.ndim > 1: 0, ...: None})},
      ... )
    """

    lift: Callable[[Callable[..., Any], Any], Callable[..., Any]]
    plain: Callable[[Callable[..., Any], tuple[str, ...]], Callable[..., Any]]
    prefix: Any = None
    stacked: bool = False
    lift_types: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=lambda: EMPTY)
    read: Callable[[Any, Callable[[Any], Mapping[str, Any]]], Any] = _as_it_is


@dataclasses.dataclass(frozen=True)
class FamilyCase:
    """A family's example model, in which every `Case` is tried.

    Attributes:
      make: `make(arrays) -> model` around {"kernel": [3, 3], "bias": [3]}. Both are parameters (the tag "param"). Put
        into it whatever else the family's models have: static values, functions, sharing.
      apply: `apply(model, x) -> y`, both [2, 3]; depends on both arrays, smoothly, and writes nothing.
      arrays: `arrays(model) -> arrays`, as they stand in it.
      write: `write(model, arrays) -> model` with these arrays: the same one, updated, if it has identity; a new one if
        it is a tree.

    Example:
      >>> FamilyCase(
      ...     make=dict,
      ...     apply=lambda model, x: jnp.tanh(x @ model["kernel"] + model["bias"]),
      ...     arrays=dict,
      ...     write=lambda model, arrays: {**model, **arrays},
      ... ).arrays({"kernel": 1, "bias": 2})
      {'kernel': 1, 'bias': 2}
    """

    make: Callable[[Mapping[str, Any]], Any]
    apply: Callable[[Any, Any], Any]
    arrays: Callable[[Any], Mapping[str, Any]]
    write: Callable[[Any, Mapping[str, Any]], Any]
