"""Axis specs, shared by every transform that maps over an axis (vmap, scan and their kin)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.buckets import Bucket
from liftcore.errors import AxisError, PrefixError, warn
from liftcore.paths import text
from liftcore.protocol import Call, Program, Site, Spec

__all__ = ["SHARED", "AxisSpec", "Carry", "MovedAxisSpec", "check_sizes", "is_axis", "mapped", "moved", "refused"]


class _Word:
    """A spelling that is no number."""

    def __init__(self, name: str, doc: str) -> None:
        self._name = name
        self.__doc__ = doc

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


Carry = _Word("Carry", "In a loop: the value that one step hands to the next.")
SHARED = _Word("SHARED", "Like None for a random stream, and the user asked for equal numbers in every lane.")


@dataclasses.dataclass(frozen=True)
class AxisSpec(Spec):
    """An axis that JAX maps natively, or none.

    Attributes:
      asked: the user asked for a shared random stream, so that a draw from it needs no warning.
    """

    asked: bool = False

    def written(self, site: Site) -> None:
        """Warns where a draw gives every lane the same numbers."""
        if self.axis is not None or self.asked or "rng_count" not in site.tags:
            return
        streams = sorted(site.tags - {"rng", "rng_key", "rng_count"})
        stream = f"stream {streams[0]!r}" if streams else "a stream"
        warn(
            f"{site.call}: {text(site.root, site.path)}: {stream} is not mapped, so that every lane draws the same "
            "numbers.\nWays out:\n"
            f"  1. Split it: with lift.split_rngs({site.root}, splits=n): ... and give its state axis 0: "
            'lift.StateAxes({"rng": 0, ...: None}).\n'
            '  2. If equal numbers are meant, say so: lift.StateAxes({"rng": None, ...: None}).',
        )


@dataclasses.dataclass(frozen=True)
class MovedAxisSpec(Spec):
    """An axis that enters by moving to the front and leaves by moving back, for loops."""

    def enter(self, value: Any, call: Call) -> Any:
        """Moves the axis to the front."""
        return value if not self.axis else jnp.moveaxis(value, self.axis, 0)

    def exit(self, value: Any, call: Call) -> Any:
        """Moves the axis back."""
        return value if not self.axis else jnp.moveaxis(value, 0, self.axis)


def is_axis(spelling: Any) -> bool:
    """Whether a spelling is a whole number."""
    return isinstance(spelling, int) and not isinstance(spelling, bool)


def refused(spelling: Any, site: Site, accepted: str) -> PrefixError:
    """The error for a spelling that this transform does not know."""
    return PrefixError(
        str(site.call),
        where=text(site.root, site.path),
        found=[f"its prefix is {spelling!r}"],
        why="A prefix leaf is a spelling that the transform knows, or a lift type.",
        ways=[f"Write {accepted}, or choose by filter: lift.StateAxes({{...}})."],
    )


def _normal(axis: int, site: Site) -> int | None:
    """The same axis counted from the front, of the value as it is outside; None where there is no value yet."""
    if site.value is None:
        return None
    rank = jnp.ndim(site.value) + (site.side == "out")
    if -rank <= axis < rank:
        return axis % rank
    ways = ["Give it another axis, or None: it is not mapped then."]
    if rank == 0 and site.reference is not None:
        kind = type(site.reference).__name__
        ways = [f"Leave its kind unmapped: in_axes=lift.StateAxes({{lift.{kind}: None, ...: {axis}}})."]
    elif rank == 0 and jnp.issubdtype(jnp.result_type(site.value), jax.dtypes.prng_key):
        ways = [f"Map over several keys: jax.random.split({site.root}, n)."]
    new = " with the new one" if site.side == "out" else ""
    why = f"The value has {rank} axes{new}, so that it has no axis {axis}."
    if site.tags & {"rng_key", "rng_count"}:
        streams = sorted(site.tags - {"rng", "rng_key", "rng_count"})
        why = f"Stream {streams[0] if streams else '?'!r} has one key, which cannot be mapped over."
        ways = [
            f"Split it first: with lift.split_rngs({site.root}, splits=n): ...",
            'Leave it unmapped: lift.StateAxes({"rng": None, ...: 0}).',
        ]
    raise AxisError(
        str(site.call),
        where=f"{text(site.root, site.path)}, shape {jnp.shape(site.value)}",
        found=[f"its axis is {axis}"],
        why=why,
        ways=ways,
    )


def mapped(spelling: Any, site: Site) -> Spec:
    """The meaning of an int or None where JAX maps natively (vmap): negative axes are passed on as they are."""
    if spelling is None or spelling is SHARED:
        return AxisSpec(None, None, asked=spelling is SHARED)
    if not is_axis(spelling):
        raise refused(spelling, site, "an int or None")
    return AxisSpec(spelling, spelling, axis=_normal(spelling, site))


_BROADCAST = """\
It is broadcast: each step of the loop would read the value from before the loop, and the update would be lost.
Ways out:
  1. Carry it: in_axes=lift.StateAxes({{{kind}: lift.Carry, ...: None}}).
  2. Give each step its own: in_axes=lift.StateAxes({{{kind}: 0, ...: None}})."""


def moved(spelling: Any, site: Site) -> Spec:
    """The meaning of an int, None or Carry in a loop over an axis (scan)."""
    if site.side == "in" and not is_axis(spelling) and isinstance(site.value, jax.Ref):
        # JAX takes no Ref as a carry; the body closes over it, and what is written there stays.
        return Spec(
            "closed", "closed", readonly="Another value in the place of a jax.Ref would be lost; write into it."
        )
    if spelling is Carry:
        return Spec("carry", "carry", carried=True)
    if spelling is None or spelling is SHARED:
        if site.side == "out" and site.value is not None:
            raise PrefixError(
                str(site.call),
                where=text(site.root, site.path),
                found=["its out axis is None"],
                why="Each step returns a value of its own, which has to be stacked or carried.",
                ways=["Write an axis: out_axes=(Carry, 0)."],
            )
        kind = "<a filter>" if site.reference is None else f"lift.{type(site.reference).__name__}"
        return Spec("broadcast", "broadcast", readonly=_BROADCAST.format(kind=kind))
    if not is_axis(spelling):
        raise refused(spelling, site, "an int, None or Carry")
    return MovedAxisSpec("scanned", "scanned", axis=_normal(spelling, site))


def check_sizes(
    program: Program, buckets: Iterable[Bucket], size: int | None, axis_of: Callable[[Any], int | None]
) -> None:
    """Checks that all mapped axes have one length.

    Args:
      program: the program, whose `ins` are the keys of the buckets.
      buckets: the leaves.
      size: the length that the user gave, if any.
      axis_of: the mapped axis of a bucket's leaves, by its key; None if there is none.

    Raises:
      AxisError: two lengths differ; names both places.
    """
    if size is None and not any(axis_of(key) is not None for key in program.ins):
        raise AxisError(
            str(program.call),
            where="nothing is mapped",
            why="No argument has an axis, so that nothing says how long it is.",
            ways=["Give an argument an axis, or say the length: axis_size in vmap, length in scan."],
        )
    first = None if size is None else (size, "the length that was asked for")
    for key, bucket in zip(program.ins, buckets, strict=True):
        axis = axis_of(key)
        if axis is None:
            continue
        for name, leaf in zip(bucket.layout.names, bucket.leaves, strict=True):
            length = jnp.shape(leaf)[axis]
            if first is None:
                first = (length, f"axis {axis} of {name}, shape {jnp.shape(leaf)}")
            elif first[0] != length:
                raise AxisError(
                    str(program.call),
                    where="mapped axes have different lengths",
                    found=[f"{first[0]}: {first[1]}", f"{length}: axis {axis} of {name}, shape {jnp.shape(leaf)}"],
                    why="All are mapped together, so that all have one length.",
                    ways=["Give what is not to be mapped the axis None.", "Choose the axis that has this length."],
                )
