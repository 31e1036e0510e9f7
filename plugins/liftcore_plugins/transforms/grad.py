"""`jax.grad` and `jax.value_and_grad` over objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import prefixes, registry
from liftcore.axes import refused
from liftcore.buckets import Bucket
from liftcore.engine import Lifted, lift
from liftcore.errors import GradError
from liftcore.options import decorator
from liftcore.protocol import Arguments, Case, Done, LiftSpec, Program, Site, Spec, inexact_is_param
from liftcore.walk import described, is_leaf

__all__ = ["case", "grad", "value_and_grad", "value_and_grad_case"]

_DIFF, _LOSS, _AUX = "diff", "loss", "aux"


def _meaning(spelling: Any, site: Site, allow_int: bool) -> Spec:
    # Integer state never gets in the way, whatever the filter takes.
    if spelling == _DIFF and (allow_int or site.value is None or inexact_is_param(site)):
        # State written in the loss leaves beside it, with no derivative of its own.
        return Spec(_DIFF, _AUX, role="differentiated")
    if spelling is None or spelling in (_DIFF, _LOSS, _AUX):
        return Spec(_AUX, _LOSS if spelling == _LOSS else _AUX, role="not differentiated")
    raise refused(spelling, site, '"diff" or None')


@dataclasses.dataclass(frozen=True)
class _Options:
    """What the user asked for: the options of `jax.grad`."""

    argnums: Any
    has_aux: bool
    holomorphic: bool
    allow_int: bool

    def states(self) -> tuple[Any, ...]:
        """A DiffState for each argument that is differentiated."""
        state = cast("type", registry.lifts.get("DiffState"))
        default = ["param", _is_integer] if self.allow_int else "param"
        several = self.argnums if isinstance(self.argnums, (tuple, list)) else (self.argnums,)
        return tuple(one if isinstance(one, state) else state(one, default) for one in several)

    def names(self, passed: Arguments) -> tuple[str, ...]:
        """Names of those arguments."""
        names = tuple(
            name for state in self.states() for name in prefixes.selected(passed, (state.argnum,), word="argnums")
        )
        if len(set(names)) == len(self.states()):
            return names
        raise GradError(
            str(passed.call),
            where=f"argnums={self.argnums!r}",
            found=[f"arguments that this selects: {', '.join(names) or 'none'}"],
            why="Each entry selects one argument of this call, and none twice.",
            ways=["Join the filters for one argument: lift.DiffState(0, lift.Any(f, g))."],
        )


def _is_integer(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.integer))


def _ins(passed: Arguments, options: _Options) -> Mapping[str, Any]:
    return {**dict.fromkeys(passed.names()), **dict(zip(options.names(passed), options.states(), strict=True))}


def _tie(passed: Arguments, values: Mapping[str, Any], out: Any, options: _Options) -> tuple[Mapping[str, Any], Any]:
    if options.has_aux and not (isinstance(out, tuple) and len(out) == 2):
        raise GradError(
            str(passed.call),
            where="the output, with has_aux=True",
            found=[f"it is {described(out)}"],
            why="With has_aux the function returns (loss, aux).",
            ways=["Return a pair, or leave has_aux out."],
        )
    loss = out[0] if options.has_aux else out
    numeric = is_leaf(loss) or isinstance(loss, (int, float, complex))
    if numeric and jnp.shape(loss) == () and not jnp.issubdtype(jnp.result_type(loss), np.inexact):
        raise GradError(
            str(passed.call),
            where="the loss",
            found=[f"its dtype is {jnp.result_type(loss)}"],
            why="Only a floating-point number has a derivative.",
            ways=["Convert it: return loss.astype(float)."],
        )
    if not numeric or jnp.shape(loss) != ():
        raise GradError(
            str(passed.call),
            where="the loss",
            found=[f"it is {described(loss)}"],
            why="A gradient is that of one number.",
            ways=[
                "Return a scalar: return loss.mean().",
                "Return further outputs beside it: return loss, aux, with has_aux=True.",
            ],
        )
    return {}, out


def _run(program: Program, options: _Options) -> Callable[..., Any]:
    if _DIFF not in program.ins:
        raise GradError(
            str(program.call),
            where=f"argnums={options.argnums!r}",
            found=["no array there is differentiable, or the filter takes none"],
            why="There is nothing to differentiate.",
            ways=[
                "Choose an argument that has floating-point arrays, by its number or name.",
                "Choose leaves by filter: argnums=lift.DiffState(0, lift.Param).",
            ],
        )
    (pure,) = program.pures
    position, loss = program.ins.index(_DIFF), program.outs.index(_LOSS)

    def run(*buckets: Bucket) -> Any:
        def of(differentiated: Bucket) -> Any:
            outs, structure = pure(*buckets[:position], differentiated, *buckets[position + 1 :])
            return outs[loss].leaves[0], (outs, structure)

        gradient = jax.grad(of, has_aux=True, holomorphic=options.holomorphic, allow_int=options.allow_int)
        gradients, (outs, structure) = gradient(buckets[position])
        return outs, structure, gradients.leaves

    return run


def _gradients(done: Done, options: _Options) -> Any:
    (leaves,) = done.extra
    packed = tuple(done.pack(name, _DIFF, leaves) for name in options.names(done.passed))
    return packed if isinstance(options.argnums, (tuple, list)) else packed[0]


def _finish_grad(done: Done, options: _Options) -> Any:
    _, out = done.merge()
    gradients = _gradients(done, options)
    return (gradients, out[1]) if options.has_aux else gradients


def _finish_value_and_grad(done: Done, options: _Options) -> Any:
    _, out = done.merge()
    return out, _gradients(done, options)


def _lifted(name: str, f: Callable[..., Any], options: _Options, finish: Callable[..., Any]) -> Lifted:
    spec = LiftSpec(
        name=name,
        ins=functools.partial(_ins, options=options),
        outs=(_LOSS, _AUX) if options.has_aux else _LOSS,
        spec=functools.partial(_meaning, allow_int=options.allow_int),
        run=functools.partial(_run, options=options),
        key=options,
        tie=functools.partial(_tie, options=options),
        finish=functools.partial(finish, options=options),
    )
    return lift(f, spec)


@decorator
def grad(
    fun: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Lifted:
    """Gradient of a scalar function, as `jax.grad`, with respect to the parameters of objects among its arguments.

    State that the function writes is kept. A shared parameter has one gradient, the sum, in the first place it is
    reached.

    Args:
      fun: the function: returns a scalar, or (scalar, aux).
      argnums: which arguments: an int, a name, or `DiffState(argument, filter)`; or a tuple of such. An int stands for
        the leaves with the tag "param" there: parameters of models, floating-point and complex arrays of trees.
      has_aux: whether f returns (loss, aux).
      holomorphic: see `jax.grad`.
      allow_int: integer arrays are differentiated too, and have gradients of dtype float0.

    Returns:
      A function that returns the gradient, or (gradient, aux). A gradient has the container that `lift.state` gives, so
      that optax works on both; a tuple of them for a tuple of argnums.

    Raises:
      AliasError: an object is shared by an argument that is differentiated and one that is not.
      GradError: nothing is differentiable, or the loss is no scalar.

    Example:
      >>> import jax.numpy as jnp
      >>> g = grad(lambda p, x: (p["w"] * x).sum())({"w": jnp.ones(2), "steps": 3}, 5.0)
      >>> g["w"].tolist(), g["steps"]
      ([5.0, 5.0], None)

    Source: `jax.grad`.
    """
    return _lifted("grad", fun, _Options(argnums, has_aux, holomorphic, allow_int), _finish_grad)


@decorator
def value_and_grad(
    fun: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Lifted:
    """Value and gradient of a scalar function: see `grad`, which has the same arguments and errors.

    Returns:
      A function that returns (loss, gradient), or ((loss, aux), gradient).

    Example:
      >>> loss, g = value_and_grad(lambda x: x**2)(3.0)
      >>> float(loss), float(g)
      (9.0, 6.0)

    Source: `jax.value_and_grad`.
    """
    options = _Options(argnums, has_aux, holomorphic, allow_int)
    return _lifted("value_and_grad", fun, options, _finish_value_and_grad)


def _summed(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(model: Any, x: Any) -> tuple[Any, Any]:
        y, after = f(model, x)
        return y.sum(), after

    return loss


def _reordered(f: Callable[..., Any]) -> Callable[..., Any]:
    def transformed(model: Any, x: Any) -> tuple[Any, Any]:
        (loss, after), gradients = f(model, x)
        return (loss, gradients), after

    return transformed


def _plain(transform: Callable[..., Any], f: Callable[..., Any], picked: tuple[str, ...]) -> Callable[..., Any]:
    def transformed(arrays: Mapping[str, Any], x: Any) -> Any:
        rest = {name: array for name, array in arrays.items() if name not in picked}

        def loss(some: Mapping[str, Any]) -> Any:
            return _summed(f)({**rest, **some}, x)

        return transform(loss, has_aux=True)({name: arrays[name] for name in picked})

    return transformed


_OF_KERNEL = {"DiffState": lambda cls: cls(0, lambda leaf: leaf.ndim > 1)}

case = Case(
    lift=lambda f, argnums: grad(_summed(f), argnums, has_aux=True),
    plain=functools.partial(_plain, jax.grad),
    prefix=0,
    lift_types=_OF_KERNEL,
    read=lambda gradients, arrays: arrays(gradients),
)
value_and_grad_case = Case(
    lift=lambda f, argnums: _reordered(value_and_grad(_summed(f), argnums, has_aux=True)),
    plain=lambda f, picked: _reordered(_plain(jax.value_and_grad, f, picked)),
    prefix=0,
    lift_types=_OF_KERNEL,
    read=lambda result, arrays: (result[0], arrays(result[1])),
)
