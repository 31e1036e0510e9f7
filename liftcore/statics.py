"""Static values by value: when two of them may share one compiled program.

A model that is built again has new functions, configs and strings that mean what the old ones meant, and should not be
traced again. Two values are the same exactly where nothing that a trace can see tells them apart:

- Numbers, strings, NumPy scalars and dtypes by type and bits: 1, True, 1.0 and `np.float32(1)` differ, so do 0.0 and
  -0.0, and a NaN is itself.
- Containers, dataclasses, slices and partials by type and by the keys of their parts at this moment. The order of a
  dict counts, since a loop over it can be traced; the order of a set does not. Fields of a dataclass with
  `compare=False` do not count, as in its own `==`.
- Functions by code, module, defaults, cells, attributes and every global that the code loads. If one of these cannot
  be compared safely (an array, a model, a bound method, an empty cell, an object with default equality), the whole
  function is compared by identity; so is a function whose globals are no imported module's (`exec`, doctests, functions
  unpickled by value). The key is computed once for each function object: a cell that is rebound later is not seen, as
  in `jax.jit`.
- Classes, modules, enums, built-in, jitted and custom-rule functions by identity. Other hashable values by their own
  `==`, among values of one type. All the rest by identity.

Identity is held weakly where the object allows it. A code object knows its line and column: two lambdas with the same
text in two places are different; the same lambda met again is not, nor is an unchanged notebook cell run again.

What this does not see (nor does `jax.jit`, for a function object that is kept): an attribute changed on a captured or
global module, class or object with its own `==`; a container changed, or a closure rebound, that only a helper function
reads; a global that only a function of another module reads, or that is read by `globals()` or `eval`. An object with
default equality that is changed in place keeps its identity, and so its key. A function that appends to a shared list
(a trace counter) has another key each time it is built again.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import struct
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np

from liftcore.contents import PARTS, Parts, captured, loads, pairs, reader
from liftcore.errors import LiftError
from liftcore.families import is_object

__all__ = ["find_array", "key", "settled"]

# A value nested deeper, or made of more containers, compares by identity from there on.
_DEEPEST = 64
_MOST = 10_000

_known: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()


class _Identity:
    """Equal to itself, and to another one around the same living object."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        self._get: Callable[[], Any]
        try:
            self._get = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not _Identity or self._hash != other._hash:
            return False
        # An id is used again after its object's death, so only living objects are compared.
        value = self._get()
        return value is not None and value is other._get()


class _Equal:
    """Compares by the value's own equality, among values of one type."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = hash(value)
        self._value = value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Equal or self._hash != other._hash or type(self._value) is not type(other._value):
            return False
        try:
            return self._value is other._value or (self._value == other._value) is True
        except Exception:  # an equality may raise whatever its author liked: it did not say that they are equal
            return False


class _Function:
    """Compares by the keys of all that a function is made of; the hash is computed once."""

    __slots__ = ("_hash", "_keys", "cyclic")

    def __init__(self, keys: Hashable, cyclic: bool) -> None:
        self._hash = hash(keys)
        self._keys = keys
        self.cyclic = cyclic

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is _Function and self._hash == other._hash and self._keys == other._keys)


class _Unsafe(Exception):
    """Something in a function's reach can only be compared by identity."""


def _itself(value: Hashable) -> Hashable:
    return value


def _typed(value: Hashable) -> Hashable:
    return type(value), value


def _float(value: float) -> Hashable:
    # Zeros and NaNs are those whose equality is not that of their bits.
    return (float, value) if value and value == value else (float, struct.pack("d", value))


_ATOMS: dict[type, Callable[[Any], Hashable]] = {
    **dict.fromkeys((str, _Identity), _itself),
    **dict.fromkeys((bool, int, bytes, types.CodeType, types.NoneType, types.EllipsisType), _typed),
    float: _float,
    complex: lambda value: (complex, struct.pack("dd", value.real, value.imag)),
    bytearray: lambda value: (bytearray, bytes(value)),
}

_BY_IDENTITY = (
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    enum.Enum,
    np.ufunc,
    jax.Device,
    type(jax.lax.add_p),
    jax.custom_jvp,
    jax.custom_vjp,
    type(jax.jit(_itself)),
    type(functools.lru_cache(_itself)),
)

# JAX keeps one object for all equal ones, weakly: the object must be held so that its identity means anything.
_INTERNED = (jax.sharding.PartitionSpec, jax.sharding.Mesh, jax.sharding.AbstractMesh)

_ARRAYS = (jax.Array, np.ndarray, jax.Ref)


def _simple(value: Any, kind: type) -> Hashable | None:
    """The key of a value that has no parts; None for any other."""
    atom = _ATOMS.get(kind)
    if atom is not None:
        return atom(value)
    if issubclass(kind, np.generic):
        return None if value.dtype.hasobject else (kind, value.dtype, value.tobytes())
    if issubclass(kind, np.dtype):
        return np.dtype, value
    if issubclass(kind, _INTERNED):
        return _Equal(value)
    return _Identity(value) if kind is object or issubclass(kind, _BY_IDENTITY) else None


def _is_bound(value: Any, kind: type) -> bool:
    """Whether a value compares by the object that it is bound to, which may change."""
    if kind is types.BuiltinFunctionType:  # functions of a module, methods of a class, and methods of an object
        return not isinstance(value.__self__, (type(None), type, types.ModuleType))
    return issubclass(kind, (types.MethodWrapperType, weakref.ref))


def _hashable(value: Any, kind: type) -> Hashable | None:
    """The key of a value that has an equality of its own to rely on; None for any other."""
    equality: Any = kind.__eq__
    hashing: Any = kind.__hash__
    default = equality is object.__eq__ or hashing is object.__hash__ or hashing is None
    if default or isinstance(value, _ARRAYS) or is_object(value) or _is_bound(value, kind):
        return None
    return _Equal(value) if jax.tree_util.all_leaves((value,)) else None


def _is_callable(kind: type) -> bool:
    """Whether values are compared by what they are made of only if all of it is safe, else by identity."""
    return kind is types.FunctionType or kind is functools.partial or kind is jax.tree_util.Partial


def _globals(fn: types.FunctionType) -> Mapping[str, Any]:
    """What a function and its helpers in the same module load: functions by identity, the rest as it is.

    What only a helper loads counts where it is simple. It never makes the function unsafe, since the helper itself is
    compared by identity.
    """
    names = list(loads(fn.__code__))
    direct = len(names)
    found: dict[str, Any] = {}
    for index, name in enumerate(names):
        scope = fn.__globals__ if name in fn.__globals__ else vars(builtins)
        if name in found or name not in scope:
            continue
        value = scope[name]
        if type(value) is types.FunctionType:
            found[name] = _Identity(value)
            if value.__globals__ is fn.__globals__:
                names += loads(value.__code__)
        elif index < direct or _simple(value, type(value)) is not None:
            found[name] = value
    return found


def _function(fn: types.FunctionType) -> Parts | None:
    """All that a function is made of; None if its globals belong to no module, since nothing else holds them weakly."""
    module = sys.modules.get(fn.__globals__.get("__name__", ""))
    if module is None or vars(module) is not fn.__globals__:
        return None
    shape = (len(fn.__defaults__ or ()), tuple(fn.__kwdefaults__ or ()))
    return [("code", fn.__code__), ("module", module), ("shape", shape), *captured(fn), *pairs(_globals(fn).items())]


def _look(value: Any, kind: type, *, inner: bool) -> tuple[Hashable | None, Parts | None]:
    """The key of a value, or the parts that it is compared by; neither if only its identity is safe."""
    found = _known.get(value) if _is_callable(kind) else _simple(value, kind)
    # The key of a function in a cycle depends on where the cycle was entered.
    if found is not None and not (inner and type(found) is _Function and found.cyclic):
        return found, None
    if kind is types.FunctionType:
        return None, _function(value)
    read = PARTS.get(kind) or (None if is_object(value) else reader(kind, compared=True))
    return (_hashable(value, kind), None) if read is None else (None, read(value))


class _Walk:
    """The computation of one key: what is open above, and how much may still be visited."""

    __slots__ = ("_cycles", "_functions", "_left", "_lowest", "_open")

    def __init__(self) -> None:
        self._cycles = 0  # how many cycles were met
        self._functions = 0  # how many of the open values are functions
        self._left = _MOST
        self._lowest = 0  # depth of the highest open value that a cycle led back to
        self._open: dict[int, int] = {}  # depth by id

    def key(self, value: Any) -> Hashable:
        kind = type(value)
        try:
            found, parts = _look(value, kind, inner=bool(self._open))
        except (LiftError, RecursionError):
            raise
        except Exception:  # an odd object may raise whatever it likes when it is looked at: its identity is safe
            found = parts = None
        if found is not None:
            return self._by_identity(value) if _is_callable(kind) and type(found) is _Identity else found
        if id(value) in self._open:
            depth = self._open[id(value)]
            self._cycles += 1
            self._lowest = min(self._lowest, depth)
            return _Walk, len(self._open) - depth
        changing = self._functions and kind is types.MethodType
        if parts is None or changing or not self._left or len(self._open) >= _DEEPEST:
            return self._by_identity(value)
        self._left -= 1
        return self._function(value, kind, parts) if _is_callable(kind) else self._content(value, kind, parts)[0]

    def _by_identity(self, value: Any) -> Hashable:
        if self._functions:
            raise _Unsafe
        return _Identity(value)

    def _content(self, value: Any, kind: type, parts: Parts) -> tuple[Hashable, bool]:
        """The key of a value by its parts, and whether no cycle leads out of it to what is open above."""
        depth = len(self._open)
        above, self._lowest = self._lowest, depth
        self._open[id(value)] = depth
        try:
            keys = [self.key(part) for _, part in parts]
        finally:
            del self._open[id(value)]
            closed = self._lowest >= depth
            self._lowest = min(above, self._lowest)
        tag = kind if kind in PARTS or kind is types.FunctionType else _Identity(kind)
        unordered = issubclass(kind, (set, frozenset))
        return (tag, frozenset(collections.Counter(keys).items()) if unordered else tuple(keys)), closed

    def _function(self, value: Any, kind: type, parts: Parts) -> Hashable:
        self._functions += 1
        cycles = self._cycles
        made: Hashable
        try:
            keys, closed = self._content(value, kind, parts)
            made = _Function(keys, cyclic=self._cycles > cycles)
        except _Unsafe:
            if self._functions > 1:
                raise
            made, closed = _Identity(value), True
        finally:
            self._functions -= 1
        return _known.setdefault(value, made) if closed else made


def key(value: Any) -> Hashable:
    """A key that two static values share exactly where it is safe to take the one for the other.

    See the head of this module for what is the same. It never raises for odd objects (an equality or a hash that
    raises, NumPy-valued equality, endless nesting): those are compared by identity.

    Args:
      value: any object.

    Returns:
      A hashable that holds no object with default equality alive, where that object allows weak references.

    Example:
      >>> key([1, "relu"]) == key([1, "relu"]), key(1) == key(True), key(0.0) == key(-0.0)
      (True, False, False)
      >>> key(jax.nn.initializers.normal(0.1)) == key(jax.nn.initializers.normal(0.1))
      True
    """
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool or value is None:
        return kind, value
    if kind is float:
        return _float(value)
    try:
        return _Walk().key(value)
    except RecursionError:  # the caller's own stack is almost full
        return _Identity(value)


def _has_equality(kind: type) -> bool:
    equality: Any = kind.__eq__
    return equality is not object.__eq__


def _is_frozen(kind: type) -> bool:
    """Whether values are dataclasses that compare by their fields, which stay what they are."""
    params: Any = getattr(kind, "__dataclass_params__", None)
    return params is not None and params.frozen and reader(kind, compared=True) is not None


def settled(value: Any) -> bool:
    """Whether the key of a value cannot change as long as it is the same object.

    Example:
      >>> settled(("relu", 2)), settled(abs), settled([2])
      (True, True, False)
    """
    pending = [value]
    while pending:
        one = pending.pop()
        kind = type(one)
        if kind is tuple or kind is frozenset:
            pending += one
        elif kind is bytearray or _is_bound(one, kind):
            return False
        elif _is_callable(kind) or kind is types.BuiltinFunctionType or _simple(one, kind) is not None:
            continue
        elif _is_frozen(kind):
            pending += [getattr(one, field.name) for field in dataclasses.fields(kind)]
        elif kind in PARTS or is_object(one) or _has_equality(kind) or reader(kind, compared=True):
            return False
    return True


def _jax_attributes(value: Any) -> Parts:
    """JAX arrays among the attributes of a plain object; its NumPy arrays are host data, such as a data set's."""
    arrays = (jax.Array, jax.core.Tracer, jax.Ref)
    slots = [name for base in type(value).__mro__ for name in vars(base).get("__slots__", ())]
    named = {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}
    return [(name, part) for name, part in named.items() if isinstance(part, arrays)]


def find_array(value: Any, *, tracers_only: bool = False) -> tuple[Hashable, ...] | None:
    """Finds the first array in a static value, where none may be: the trace would freeze it, or leak it.

    Containers, partials, bound objects and the fields of dataclasses are searched, the nearest first, and the JAX
    arrays in attributes of a plain object. NumPy scalars are atoms, not arrays; keys and `jax.Ref` are arrays. A
    function may close over an array, which its identity stands for, but not over a tracer.

    Args:
      value: any object.
      tracers_only: find tracers and no other array; search the cells, defaults and attributes of functions too.

    Returns:
      Plain keys from the value to the array, none if the value is one itself; None if there is no array.

    Example:
      >>> find_array({"scales": (1.0, np.ones(3))})
      ('scales', 1)
    """
    arrays = (jax.core.Tracer,) if tracers_only else _ARRAYS
    queue: collections.deque[tuple[tuple[Hashable, ...], Any]] = collections.deque([((), value)])
    seen: dict[int, Any] = {}
    while queue and len(seen) < _MOST:
        path, value = queue.popleft()
        kind = type(value)
        try:
            if isinstance(value, arrays):
                return path
            if id(value) in seen or kind in _ATOMS:
                continue
            seen[id(value)] = value
            read = captured if kind is types.FunctionType and tracers_only else reader(kind, compared=False)
            if read is None and not path and kind.__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
                read = _jax_attributes
            queue.extend(((*path, name), part) for name, part in (read(value) if read else ()))
        except Exception:  # an odd object may raise when it is looked at: nothing can be found in it
            continue
    return None
