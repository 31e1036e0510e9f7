"""Operators of a variable: each acts on the value, and the result is a plain array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Arithmetic", "raw"]

_Binary = Callable[[Any, Any], Any]
_Unary = Callable[[Any], Any]


def raw(value: Any) -> Any:
    """The value of a variable; anything else as it is."""
    return value.value if isinstance(value, Arithmetic) else value


def _operators(apply: _Binary) -> tuple[_Binary, _Binary, _Binary]:
    """An operator, its reflection, and its in-place form, which updates the variable and keeps it."""

    def forward(self: Any, other: Any) -> Any:
        return apply(self.value, raw(other))

    def reflected(self: Any, other: Any) -> Any:
        return apply(other, self.value)

    def in_place(self: Any, other: Any) -> Any:
        self.value = apply(self.value, raw(other))
        return self

    return forward, reflected, in_place


def _comparison(apply: _Binary) -> _Binary:
    return _operators(apply)[0]


def _unary(apply: _Unary) -> _Unary:
    def method(self: Any) -> Any:
        return apply(self.value)

    return method


class Arithmetic:
    """What an array can do, for a class with a `value`; equality is left out, since variables compare by identity."""

    __slots__ = ()

    # NumPy's operators then leave the result to ours, as they do for JAX arrays.
    __array_priority__ = 100

    __add__, __radd__, __iadd__ = _operators(operator.add)
    __sub__, __rsub__, __isub__ = _operators(operator.sub)
    __mul__, __rmul__, __imul__ = _operators(operator.mul)
    __truediv__, __rtruediv__, __itruediv__ = _operators(operator.truediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators(operator.floordiv)
    __mod__, __rmod__, __imod__ = _operators(operator.mod)
    __pow__, __rpow__, __ipow__ = _operators(operator.pow)
    __matmul__, __rmatmul__, __imatmul__ = _operators(operator.matmul)
    __lshift__, __rlshift__, __ilshift__ = _operators(operator.lshift)
    __rshift__, __rrshift__, __irshift__ = _operators(operator.rshift)
    __and__, __rand__, __iand__ = _operators(operator.and_)
    __or__, __ror__, __ior__ = _operators(operator.or_)
    __xor__, __rxor__, __ixor__ = _operators(operator.xor)

    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(abs), _unary(operator.invert)
    __bool__, __int__, __float__, __complex__ = _unary(bool), _unary(int), _unary(float), _unary(complex)
    __index__, __len__ = _unary(operator.index), _unary(len)

    @property
    def value(self) -> Any:
        """The value on which the operators act."""
        raise NotImplementedError

    @value.setter
    def value(self, new: Any) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.value, dtype=dtype, copy=copy)
