"""`jax.vmap` over objects."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from liftcore import axes, prefixes
from liftcore.engine import Lifted, lift
from liftcore.errors import PrefixError, WriteError
from liftcore.options import decorator
from liftcore.protocol import EMPTY, Case, LiftSpec, Program

__all__ = ["case", "vmap"]

_BATCHED = re.compile(r"out_axes(\[\d+\])+ `(?P<path>.+?)`, got axis spec None but output was batched")


def _run(program: Program, options: Mapping[str, Any]) -> Callable[..., Any]:
    (pure,) = program.pures
    mapped = jax.vmap(pure, in_axes=program.ins, out_axes=(program.outs, None), **options)

    def run(*buckets: Any) -> Any:
        axes.check_sizes(program, buckets, options["axis_size"], lambda key: key)
        try:
            return mapped(*buckets)
        except ValueError as error:
            match = _BATCHED.search(str(error))
            if match is None:
                raise
            raise _batched(program, match["path"]) from error

    return run


def _batched(program: Program, path: str) -> Exception:
    if path.startswith("return"):
        return PrefixError(
            str(program.call),
            where=f"{path} has out axis None",
            found=["its value differs from lane to lane"],
            why="An output without an axis has one value for all lanes.",
            ways=[
                "Give it an axis: out_axes=0.",
                "Reduce it in the function: value.mean(), or jax.lax.pmean with axis_name.",
            ],
        )
    return WriteError(
        str(program.call),
        where=f"{path} was written",
        found=["its axis is None: all lanes share it", "the new value differs from lane to lane"],
        why="A shared value can take only one new value.",
        ways=[
            "Give it an axis: in_axes=lift.StateAxes({<a filter that matches it>: 0, ...: None}).",
            'Write one value for all lanes: jax.lax.pmean(value, "batch") with axis_name="batch".',
        ],
    )


@decorator
def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    *,
    metadata_params: Mapping[str, Any] = EMPTY,
) -> Lifted:
    """Maps a function over an axis of its arguments, as `jax.vmap` does, objects among them.

    A reference that is mapped may be written; a broadcast one only with a value that is the same in every lane.

    Args:
      fun: the function, bound method or callable object; what it is bound to is broadcast.
      in_axes: a prefix of the positional arguments, or a dict by parameter name: the axis that each array loses inside
        (negative ones count from the end), None for what is broadcast, or `StateAxes`. Keyword arguments get 0.
      out_axes: a prefix of the output: where the new axis goes.
      axis_name: name of the mapped axis for collectives.
      axis_size: its length, where no argument tells it.
      spmd_axis_name: see `jax.vmap`.
      metadata_params: words about the axis for axis metadata.

    Returns:
      A function of arguments with one axis more.

    Raises:
      AliasError: a shared object has two different axes.
      AxisError: an axis does not exist, or lengths differ.
      PrefixError: in_axes or out_axes do not fit.
      WriteError: a broadcast reference was written with values that differ.

    Example:
      >>> import jax.numpy as jnp
      >>> vmap(lambda w, x: w @ x, in_axes=(None, 0))(jnp.eye(2), jnp.ones((3, 2))).shape
      (3, 2)

    Source: `jax.vmap`.
    """
    options = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}
    spec = LiftSpec(
        name="vmap",
        ins=lambda arguments: prefixes.by_parameter(in_axes, arguments, word="in_axes", keyword=0),
        outs=out_axes,
        spec=axes.mapped,
        run=functools.partial(_run, options=options),
        key=(in_axes, out_axes, tuple(options.values()), dict(metadata_params)),
        size=axis_size,
        params=metadata_params,
    )
    return lift(fun, spec)


def _plain(f: Callable[..., Any], picked: tuple[str, ...]) -> Callable[..., Any]:
    axes = {name: 0 if name in picked else None for name in ("kernel", "bias")}
    return jax.vmap(f, in_axes=(axes, None), out_axes=(0, axes))


case = Case(
    lift=lambda f, prefix: vmap(f, in_axes=(prefix, None), out_axes=(0, prefix)),
    plain=_plain,
    prefix=0,
    stacked=True,
    lift_types={"StateAxes": lambda cls: cls({lambda leaf: leaf.ndim > 1: 0, ...: None})},
)
