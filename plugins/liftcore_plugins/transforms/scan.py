"""`jax.lax.scan` over objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from liftcore import axes, prefixes
from liftcore.axes import Carry
from liftcore.buckets import Bucket
from liftcore.engine import Lifted, lift
from liftcore.errors import PrefixError
from liftcore.options import MISSING
from liftcore.protocol import EMPTY, Arguments, Case, Done, LiftSpec, Program
from liftcore.walk import described

__all__ = ["case", "scan"]

_CARRY, _SCANNED, _BROADCAST, _CLOSED = "carry", "scanned", "broadcast", "closed"


@dataclasses.dataclass(frozen=True)
class _Options:
    """What the user asked for: the options of `jax.lax.scan`, and the prefixes."""

    in_axes: Any
    out_axes: Any
    length: int | None
    reverse: bool
    unroll: int | bool

    def carried_output(self) -> int | None:
        """Which entry of the output is the carry; -1 for all of it, None for none."""
        if self.out_axes is Carry:
            return -1
        entries = self.out_axes if isinstance(self.out_axes, (tuple, list)) else ()
        return next((index for index, entry in enumerate(entries) if entry is Carry), None)

    def ins(self, passed: Arguments) -> Mapping[str, Any]:
        """A prefix for each argument; refuses a carry that comes in and does not leave, or the reverse."""
        result = prefixes.by_parameter(self.in_axes, passed, word="in_axes", keyword=0)
        carried = [name for name, prefix in result.items() if prefix is Carry]
        if len(carried) > 1 or bool(carried) != (self.carried_output() is not None):
            raise PrefixError(
                str(passed.call),
                where="Carry in in_axes and out_axes",
                found=[
                    f"in_axes={self.in_axes!r}: carried arguments: {', '.join(carried) or 'none'}",
                    f"out_axes={self.out_axes!r}",
                ],
                why="The carry is one argument, and one entry of the output: the next step's value.",
                ways=[
                    "Write in_axes=(Carry, 0), out_axes=(Carry, 0), and put several values into one tuple.",
                    "Carry state of an object by filter: in_axes=(lift.StateAxes({'batch_stat': Carry, ...: 0}), 0).",
                ],
            )
        return result

    def carried_argument(self, passed: Arguments) -> str | None:
        """Name of the argument that is the carry."""
        return next((name for name, prefix in self.ins(passed).items() if prefix is Carry), None)


def _tie(passed: Arguments, values: Mapping[str, Any], out: Any, options: _Options) -> tuple[Mapping[str, Any], Any]:
    index, name = options.carried_output(), options.carried_argument(passed)
    if index is None or name is None:
        return {}, out
    if index < 0:
        return {name: out}, None
    if not isinstance(out, tuple) or len(out) != len(options.out_axes):
        raise PrefixError(
            str(passed.call),
            where="the output of one step",
            found=[
                f"out_axes={options.out_axes!r}",
                f"the function returned {described(out)}" + (f" of {len(out)}" if isinstance(out, tuple) else ""),
            ],
            why="One step returns a tuple with one value for each entry of out_axes.",
            ways=["Return (carry, y); where there is no y, return (carry, None)."],
        )
    return {name: out[index]}, (*out[:index], None, *out[index + 1 :])


def _finish(done: Done, options: _Options) -> Any:
    after, out = done.merge()
    index, name = options.carried_output(), options.carried_argument(done.passed)
    if index is None or name is None:
        return out
    return after[name] if index < 0 else (*out[:index], after[name], *out[index + 1 :])


def _run(program: Program, options: _Options) -> Callable[..., Any]:
    (pure,) = program.pures

    def step(closed: Any, state: tuple[Any, Any], scanned: Any) -> Any:
        carry, broadcast = state
        given: dict[Hashable, Any] = {_CARRY: carry, _SCANNED: scanned, _BROADCAST: broadcast, _CLOSED: closed}
        outs, structure = pure(*(given[key] for key in program.ins))
        left = dict(zip(program.outs, outs, strict=True))
        return (left[_CARRY] if _CARRY in program.ins else (), broadcast), (left.get(_SCANNED, ()), structure)

    # One body for all calls, which closes over no array, so that JAX finds its own trace of it again. What is broadcast
    # travels as a carry that nobody touches; JAX makes a constant of it. Only a Ref has to be closed over.
    body = functools.partial(step, ())

    def run(*buckets: Bucket) -> Any:
        axes.check_sizes(program, buckets, options.length, lambda key: 0 if key == _SCANNED else None)
        given = dict(zip(program.ins, buckets, strict=True))
        (carry, _), (scanned, structure) = jax.lax.scan(
            functools.partial(step, given[_CLOSED]) if _CLOSED in given else body,
            (given.get(_CARRY, ()), given.get(_BROADCAST, ())),
            given.get(_SCANNED, ()),
            length=options.length,
            reverse=options.reverse,
            unroll=options.unroll,
        )
        left: dict[Hashable, Any] = {_CARRY: carry, _SCANNED: scanned}
        return tuple(left[key] for key in program.outs), structure

    return run


def scan(
    f: Any = MISSING,
    init: Any = MISSING,
    xs: Any = MISSING,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    metadata_params: Mapping[str, Any] = EMPTY,
) -> Any:
    """Loops over an axis of the arguments with a carry, as `jax.lax.scan` does, objects among them.

    `scan(f, init, xs, ...)` runs the loop; `scan(f, ...)` makes a function of what f takes, and `scan(...)` a
    decorator. A reference is carried, scanned or broadcast; a broadcast one may not be written, since the update
    would be lost.

    Args:
      f: one step, such as `f(carry, x) -> (carry, y)`; what it is bound to is broadcast.
      init: the first carry.
      xs: what is looped over; None where f takes None.
      length: number of steps, where no argument tells it.
      reverse: whether the last step comes first.
      unroll: see `jax.lax.scan`.
      in_axes: a prefix of the arguments: `Carry` for the one that each step replaces, the axis to loop over, None for
        what is broadcast, or `StateAxes`, in which `Carry` may stand as well. Keyword arguments get 0.
      out_axes: a prefix of the output: `Carry` for the next carry, the axis to stack along for the rest.
      metadata_params: words about the axis for axis metadata.

    Returns:
      What f returns, with the last carry and stacked outputs; or a function; or a decorator. An object in the carry is
      the one that came in, updated.

    Raises:
      AxisError: an axis does not exist, or lengths differ.
      CarryError: the carry leaves with another structure, shape or dtype.
      PrefixError: in_axes or out_axes do not fit.
      WriteError: a broadcast reference was written.

    Example:
      >>> import jax.numpy as jnp
      >>> total, sums = scan(lambda c, x: (c + x, c + x), jnp.zeros(()), jnp.arange(1.0, 4.0))
      >>> float(total), sums.tolist()
      (6.0, [1.0, 3.0, 6.0])

    Source: `jax.lax.scan`.
    """
    options = _Options(in_axes, out_axes, length, reverse, unroll)

    def lifted(function: Callable[..., Any]) -> Lifted:
        spec = LiftSpec(
            name="scan",
            ins=options.ins,
            outs=_without_carry(out_axes),
            spec=axes.moved,
            run=functools.partial(_run, options=options),
            key=(options, dict(metadata_params)),
            tie=functools.partial(_tie, options=options),
            finish=functools.partial(_finish, options=options),
            size=length,
            params=metadata_params,
        )
        return lift(function, spec)

    if f is MISSING:
        return lifted
    if init is MISSING:
        return lifted(f)
    return lifted(f)(init, None if xs is MISSING else xs)


def _without_carry(out_axes: Any) -> Any:
    if out_axes is Carry:
        return None
    if isinstance(out_axes, (tuple, list)):
        return tuple(None if entry is Carry else entry for entry in out_axes)
    return out_axes


def _layers(f: Callable[..., Any], prefix: Any) -> Callable[..., Any]:
    def layer(x: Any, model: Any) -> tuple[Any, Any]:
        y, after = f(model, x)
        # What is broadcast may not leave a step, so that a model that is broadcast in part is not returned.
        return y, after if prefix == 0 else None

    return lambda model, x: scan(layer, x, model, in_axes=(Carry, prefix))


def _plain(f: Callable[..., Any], picked: tuple[str, ...]) -> Callable[..., Any]:
    def transformed(arrays: Mapping[str, Any], x: Any) -> Any:
        broadcast = {name: array for name, array in arrays.items() if name not in picked}

        def layer(x: Any, scanned: Mapping[str, Any]) -> tuple[Any, Any]:
            y, after = f({**broadcast, **scanned}, x)
            return y, {name: after[name] for name in picked}

        y, after = jax.lax.scan(layer, x, {name: arrays[name] for name in picked})
        return y, {**broadcast, **after}

    return transformed


case = Case(
    lift=_layers,
    plain=_plain,
    prefix=0,
    stacked=True,
    lift_types={"StateAxes": lambda cls: cls({lambda leaf: leaf.ndim > 1: 0, ...: None})},
)
