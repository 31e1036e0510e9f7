"""Variables: mutable cells with identity, whose kind says what they are for."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import captures
from liftcore.captures import trace_state
from liftcore.errors import WriteError
from liftcore.protocol import EMPTY, Reference
from liftcore_plugins.objects.arithmetic import Arithmetic, raw
from liftcore_plugins.objects.display import Shown
from liftcore_plugins.objects.errors import ObjectError
from liftcore_plugins.objects.notes import changed, notes_in, stamp

__all__ = [
    "REFERENCE",
    "BatchStat",
    "Cache",
    "Intermediate",
    "Param",
    "RngCount",
    "RngKey",
    "RngState",
    "Variable",
    "tags_of",
]

_COMPARED_BY_VALUE = (bool, int, float, complex, np.ndarray, np.generic, jax.Array)


class Variable(Arithmetic, Shown):
    """A mutable cell that holds an array, a number or a pytree.

    `v.value` reads and writes; `v[...]`, `v[i]` index and update; `v += 1` updates in place. Operators, `jax.numpy`
    functions and attributes such as `v.shape` treat `v` as its value (functions of `jax.lax` want `v.value`). `v == w`
    compares by identity.

    A subclass is a kind. A kind that declares `tag` is a word of filters, and stands in filters for every leaf with
    that tag; a subclass that declares none keeps the tags of its bases and stands for its own instances only.

    A plain JAX transform takes a variable for a pytree, and gives the function a read-only copy, so that no update is
    lost without a word. Lifted transforms give the function a variable that can be written.

    Args:
      value: the first value. That of another variable is taken out of it.
      **metadata: static values that travel with the variable.

    Example:
      >>> import jax.numpy as jnp
      >>> class LoRA(Param): ...
      >>> v = LoRA(jnp.ones(3), rank=2)
      >>> v[0] = 5.0
      >>> v += 1
      >>> v, float(jnp.sum(v))
      (LoRA(float32[3], rank=2), 10.0)
    """

    __slots__ = ("__weakref__", "_metadata", "_notes", "_token", "_trace", "_value")

    #: The kind's word in filters.
    tag: ClassVar[str]

    _value: Any
    _metadata: Mapping[str, Any]
    _token: object | None  # lifted call in which it was made
    _trace: object | None  # JAX trace in which it was made; None for a copy that JAX made

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102
        self = super().__new__(cls)
        _write_metadata(self, EMPTY)
        _write_token(self, captures.token())
        _write_trace(self, trace_state())
        return self

    def __init__(self, value: Any, /, **metadata: Any) -> None:
        write(self, raw(value))
        set_metadata(self, metadata)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if vars(cls).get("__slots__"):
            raise ObjectError(
                f"class {cls.__name__}",
                found=[f"__slots__ = {vars(cls)['__slots__']!r}"],
                why="A variable holds a value and metadata; what stands in other slots would be lost in a lifted call.",
                ways=["Keep it in the metadata: super().__init__(value, name=...)."],
            )
        _register(cls)

    @property
    def value(self) -> Any:
        """The value that it holds.

        Raises:
          CaptureError: on reading, if a lifted call got it as an argument and reads it as a captured one too; on
            writing, if it was captured by a lifted call.
          WriteError: on writing under another JAX trace than the one in which it was made.
        """
        return captures.read(self, REFERENCE, self._token)

    @value.setter
    def value(self, new: Any) -> None:
        self._check_write()
        write(self, raw(new))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Static values that travel with the variable: a read-only mapping, replaced as a whole on change."""
        return self._metadata

    @metadata.setter
    def metadata(self, new: Mapping[str, Any]) -> None:
        self._check_write()
        set_metadata(self, new)

    def set_metadata(self, **changes: Any) -> None:
        """Sets some of the metadata and keeps the rest.

        Args:
          **changes: static values.

        Raises:
          CaptureError, WriteError: as for writing `value`.

        Example:
          >>> v = Param(1.0, axes=("in",))
          >>> v.set_metadata(frozen=True)
          >>> dict(v.metadata)
          {'axes': ('in',), 'frozen': True}
        """
        self.metadata = {**self._metadata, **changes}

    def _check_write(self) -> None:
        captures.check_write(self, self._token)
        if self._trace is None:
            raise WriteError(
                f"write to {self!r}",
                where="a copy that JAX made",
                why="A plain JAX function took the variable for a pytree: nothing outside would see the new value.",
                ways=[
                    "Use the lifted transform, which carries the new value out: lift.jit(f)(v).",
                    f"Make a variable of the copy: {type(self).__name__}(v.value).",
                ],
            )
        if self._trace != trace_state():
            raise WriteError(
                f"write to {self!r}",
                where="under a JAX trace in which it was not made",
                why="Nothing would carry the new value out of the plain JAX transform that is running.",
                ways=[
                    "Use the lifted transform and pass the object that holds it: lift.jit(f)(obj, ...).",
                    "Return the new value, and write it outside: v.value = jax.jit(f)(v.value).",
                ],
            )

    def __getitem__(self, index: Any) -> Any:
        return self.value if index is ... else self.value[raw(index)]

    def __setitem__(self, index: Any, new: Any) -> None:
        self.value = _updated(self.value, raw(index), raw(new))

    def __getattr__(self, name: str) -> Any:
        # A property that raises AttributeError also ends here: the value must not answer in its place.
        if name.startswith("_") or hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)
        try:
            return getattr(self.value, name)
        except AttributeError:
            hint = f": write v.metadata[{name!r}]" if name in self._metadata else ""
            problem = f"{type(self).__name__} has no {name!r}, and nor has its value{hint}"
            raise AttributeError(problem, name=name, obj=self) from None

    def __setattr__(self, name: str, new: Any) -> None:
        if not hasattr(getattr(type(self), name, None), "__set__"):
            raise ObjectError(
                f"{type(self).__name__}.{name} = ...",
                why="A variable holds a value and metadata; any other attribute would be lost in a lifted call.",
                ways=[f"Write v.set_metadata({name}=...) for a static value.", "Write v.value = ... for an array."],
            )
        object.__setattr__(self, name, new)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _COMPARED_BY_VALUE):
            raise ObjectError(
                f"{type(self).__name__} == {type(other).__name__}",
                why="Variables compare by identity, so that this would always be False.",
                ways=["Compare the value: v.value == x."],
            )
        return self is other

    __hash__ = object.__hash__

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        return self.value, dict(self._metadata)

    def __setstate__(self, state: tuple[Any, dict[str, Any]]) -> None:
        write(self, state[0])
        set_metadata(self, state[1])

    def _shown(self) -> Iterable[tuple[str, Any]]:
        return [("", getattr(self, "_value", ...)), *self._metadata.items()]


def _updated(old: Any, index: Any, new: Any) -> Any:
    """A value in which the part at an index is another one; the old value stays as it was."""
    if isinstance(old, (MutableMapping, list)):
        if index is ...:
            return new
        changed = copy.copy(old)
        changed[index] = new
        return changed
    # Overwriting all of an array with its like is no scatter.
    same = jnp.shape(old) == jnp.shape(new) and jnp.result_type(old) == getattr(new, "dtype", None)
    return new if index is ... and same else jnp.asarray(old).at[index].set(new)


#: Raw writes, without the checks: for the engine, which carries values in and out.
write = vars(Variable)["_value"].__set__
_write_metadata = vars(Variable)["_metadata"].__set__
_write_token = vars(Variable)["_token"].__set__
_write_trace = vars(Variable)["_trace"].__set__


def set_metadata(cell: Variable, metadata: Mapping[str, Any]) -> None:
    """Replaces all metadata, without the checks."""
    if not metadata and cell._metadata is EMPTY:  # as in a new one: nothing changes
        return
    _write_metadata(cell, MappingProxyType(dict(metadata)))
    changed()


def _read_all(cells: Iterable[Any]) -> list[Any]:
    return [cell._value for cell in cells]


def _make(cls: type[Variable], metadata: Mapping[str, Any]) -> Variable:
    cell = Variable.__new__(cls)
    if metadata:
        _write_metadata(cell, MappingProxyType(dict(metadata)))
    return cell


#: What a variable is to the lift.
REFERENCE = Reference(
    read=operator.attrgetter("_value"),
    write=write,
    make=_make,
    metadata=operator.attrgetter("_metadata"),
    set_metadata=set_metadata,
    born=operator.attrgetter("_token"),
    check_write=Variable._check_write,
    notes=notes_in(vars(Variable)["_notes"]),
    read_all=_read_all,
    stamp=stamp,
)


def _register(cls: type[Variable]) -> None:
    # jax.numpy takes as an array only what JAX can flatten.
    def flatten(cell: Variable) -> tuple[tuple[Any], Mapping[str, Any]]:
        return (cell.value,), cell.metadata

    def flatten_with_keys(cell: Variable) -> tuple[tuple[tuple[Any, Any]], Mapping[str, Any]]:
        return ((jax.tree_util.GetAttrKey("value"), cell.value),), cell.metadata

    def unflatten(metadata: Mapping[str, Any], children: Iterable[Any]) -> Variable:
        cell = _make(cls, metadata)
        write(cell, *children)
        _write_trace(cell, None)
        return cell

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


_register(Variable)


class Param(Variable):
    """A weight: what is trained, and what `grad` differentiates unless told otherwise."""

    __slots__ = ()
    tag = "param"


class BatchStat(Variable):
    """A running statistic of a normalisation layer."""

    __slots__ = ()
    tag = "batch_stat"


class Cache(Variable):
    """State between calls, such as a decoder's keys and values."""

    __slots__ = ()
    tag = "cache"


class Intermediate(Variable):
    """A value that a layer leaves for its caller to look at."""

    __slots__ = ()
    tag = "intermediate"


class RngState(Variable):
    """State of a random stream, whose name stands in the metadata as `stream` and is a tag as well."""

    __slots__ = ()
    tag = "rng"


class RngKey(RngState):
    """The key from which a stream draws."""

    __slots__ = ()
    tag = "rng_key"


class RngCount(RngState):
    """How many keys a stream has given."""

    __slots__ = ()
    tag = "rng_count"


def tags_of(cell: object) -> frozenset[str]:
    """Words by which filters find a variable: the tags of its class and its bases, and the name of its stream.

    Args:
      cell: a variable; anything else has no tags.

    Example:
      >>> sorted(tags_of(RngKey(0, stream="dropout")))
      ['dropout', 'rng', 'rng_key']
    """
    if not isinstance(cell, Variable):
        return frozenset()
    words = {vars(cls)["tag"] for cls in type(cell).__mro__ if "tag" in vars(cls)}
    if isinstance(cell, RngState) and "stream" in cell.metadata:
        words.add(cell.metadata["stream"])
    return frozenset(words)
