"""`jax.jit` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import prefixes
from liftcore.buckets import Bucket
from liftcore.engine import Lifted, Prepared, lift
from liftcore.errors import StructureError
from liftcore.options import decorator
from liftcore.protocol import STATIC, Arguments, Case, LiftSpec, Program, Site, Spec

__all__ = ["Compiled", "Jitted", "Lowered", "case", "jit"]

_KEPT, _DONATED = "kept", "donated"


def _meaning(spelling: Any, site: Site) -> Spec:
    # What is reached through a donated argument always leaves: its buffer is gone. A Ref is never donated.
    donated = spelling == _DONATED and not isinstance(site.value, jax.Ref)
    return Spec(_DONATED if donated else _KEPT, _KEPT, carried=donated, role=spelling)


def _distinct(bucket: Bucket, kept: Sequence[Bucket]) -> Bucket:
    """The donated bucket with copies of what is donated twice, or kept as well: XLA takes no such buffer."""
    every = [id(leaf) for other in (bucket, *kept) for leaf in other.leaves]
    if len(set(every)) == len(every):
        return bucket
    seen = {id(leaf) for other in kept for leaf in other.leaves}

    def once(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return Bucket([once(leaf) for leaf in bucket.leaves], bucket.layout)


class Lowered:
    """A lowered program: see `Jitted.lower`. It has what `jax.stages.Lowered` has, such as `as_text`."""

    def __init__(self, jitted: Jitted, prepared: Prepared, stage: Any) -> None:
        self._jitted, self._prepared, self._stage = jitted, prepared, stage

    def compile(self, *args: Any, **options: Any) -> Compiled:
        """Compiles it, with the options of `jax.stages.Lowered.compile`."""
        return Compiled(self._jitted, self._prepared, self._stage.compile(*args, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Compiled:
    """A compiled program. Call it as the function; it has what `jax.stages.Compiled` has, such as `cost_analysis`."""

    def __init__(self, jitted: Jitted, prepared: Prepared, stage: Any) -> None:
        self._jitted, self._program, self._stage = jitted, prepared.program, stage
        self._types = prepared.types()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on arguments of the structure, shapes and dtypes that it was compiled for.

        Raises:
          StructureError: the structure differs.
        """
        prepared = self._jitted.prepare(*args, **kwargs)
        if prepared.program is not self._program:
            raise StructureError(
                str(prepared.call),
                where="a compiled program",
                found=self._differences(prepared.types()),
                why="A compiled program takes arguments of the structure, shapes and dtypes that it was compiled for.",
                ways=["Call the jitted function itself, which compiles anew.", "Lower it with arguments like these."],
            )
        return self._jitted.finish(prepared, self._stage(*prepared.buckets()))

    def _differences(self, types: Mapping[str, str]) -> list[str]:
        compiled = self._types
        names = [name for name in {**compiled, **types} if compiled.get(name) != types.get(name)]
        absent = "no such array"
        return [
            f"{name}: compiled for {compiled.get(name, absent)}, called with {types.get(name, absent)}"
            for name in names[:5]
        ] or ["a class, a static value or the sharing differs"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Jitted(Lifted):
    """A jitted function over objects."""

    methods = Lifted.methods | {"lower", "trace"}

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the function for these arguments (arrays, or objects of `jax.ShapeDtypeStruct`) without running it."""
        return Lowered(self, *self.traced(lambda prepared: _stage("lower", prepared), args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function for these arguments: a `jax.stages.Traced` of the pure function."""
        return self.traced(lambda prepared: _stage("trace", prepared), args, kwargs)[1]


class _Donating:
    """What runs a jitted program that takes some buffers for good."""

    def __init__(self, jitted: Any, position: int) -> None:
        self._jitted, self._position = jitted, position

    def __call__(self, *buckets: Bucket) -> Any:
        position = self._position
        donated, kept = buckets[position], (*buckets[:position], *buckets[position + 1 :])
        try:
            return self._jitted(*kept[:position], _distinct(donated, kept), *kept[position:])
        except Exception as error:
            if gone := donated.deleted():
                error.add_note(f"Donated to the call that failed, and gone: {', '.join(gone)}.")
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


def _run(program: Program, options: Mapping[str, Any]) -> Callable[..., Any]:
    (pure,) = program.pures
    if _DONATED not in program.ins:
        return jax.jit(pure, **options)
    position = program.ins.index(_DONATED)
    return _Donating(jax.jit(pure, donate_argnums=position, **options), position)


def _stage(name: str, prepared: Prepared) -> Any:
    return getattr(prepared.function, name)(*prepared.buckets())


@decorator
def jit(
    fun: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Jitted:
    """Compiles a function, as `jax.jit` does, objects among its arguments.

    Updates of objects are carried out, structure changes included; only what changed leaves the compiled program.
    Static values in objects compare by value, so that a rebuilt model does not compile again.

    Args:
      fun: the function, bound method or callable object.
      static_argnums: arguments that are static values, by position; what f is bound to is not counted.
      static_argnames: likewise, by name.
      donate_argnums: arguments whose buffers may be reused; objects in them stay valid.
      donate_argnames: likewise, by name.
      keep_unused: see `jax.jit`.
      inline: see `jax.jit`.

    Returns:
      A function with `lower`, `trace` and `clear_cache`.

    Raises:
      AliasError: an object is reached through a donated and through a kept argument.
      BindError: there is no such argument.
      CaptureError: f wrote or returned an object that it closes over.

    Example:
      >>> import jax.numpy as jnp
      >>> float(jit(lambda x, *, s: x * s)(jnp.ones(()), s=2.0))
      2.0

    Source: `jax.jit`.
    """
    static = (_listed(static_argnums), _listed(static_argnames))
    donate = (_listed(donate_argnums), _listed(donate_argnames))
    options = {"keep_unused": keep_unused, "inline": inline}

    def ins(arguments: Arguments) -> Mapping[str, Any]:
        result: dict[str, Any] = dict.fromkeys(arguments.names(), _KEPT)
        chosen = prefixes.selected(arguments, *donate, word="donate_argnums, donate_argnames")
        result.update(dict.fromkeys(chosen, _DONATED))
        fixed = prefixes.selected(arguments, *static, word="static_argnums, static_argnames")
        result.update(dict.fromkeys(fixed, STATIC))
        return result

    spec = LiftSpec(
        name="jit",
        ins=ins,
        outs=_KEPT,
        spec=_meaning,
        run=functools.partial(_run, options=options),
        key=(static, donate, options),
    )
    return lift(fun, spec, Jitted)


def _listed(one: Any) -> tuple[Any, ...]:
    if one is None:
        return ()
    return (one,) if isinstance(one, (int, str)) else tuple(one)


case = Case(lift=lambda f, prefix: jit(f), plain=lambda f, picked: jax.jit(f))
