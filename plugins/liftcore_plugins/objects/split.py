"""Splitting random streams, so that each lane of a mapped transform draws its own numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar, overload

import jax
import jax.numpy as jnp

from liftcore.binding import Target
from liftcore.errors import FilterError
from liftcore.filters import Compiled, compile_filter
from liftcore.filters import text as filter_text
from liftcore.protocol import Call, Filter, Site
from liftcore.walk import Walk
from liftcore_plugins.objects.rngs import RngStream
from liftcore_plugins.objects.variable import tags_of

__all__ = ["SplitRngs", "restore_rngs", "split_rngs"]

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


class SplitRngs:
    """Streams that were split, and what puts them back: given by `split_rngs`, taken by `restore_rngs`.

    Leaving a `with` block puts them back as well, also after an error. What was put back once stays as it is.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[RngStream, jax.Array, jax.Array]] = []

    def _split(self, streams: Iterable[RngStream], splits: int | tuple[int, ...]) -> None:
        try:
            for stream in streams:
                whole = stream.key.value
                lanes = jax.random.split(stream(), splits)
                self._taken.append((stream, whole, stream.count.value))
                stream.key.value = lanes
                stream.count.value = jnp.zeros(lanes.shape, jnp.uint32)
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        while self._taken:
            stream, key, count = self._taken.pop()
            stream.key.value = key
            stream.count.value = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()


@overload
def split_rngs(*, splits: int | tuple[int, ...], only: Filter = ...) -> Callable[[_Fn], _Fn]: ...


@overload
def split_rngs(first: Any, /, *others: Any, splits: int | tuple[int, ...], only: Filter = ...) -> SplitRngs: ...


def split_rngs(*objects: Any, splits: int | tuple[int, ...], only: Filter = ...) -> Any:
    """Splits random streams in place: each becomes a batch of streams, one for each lane.

    A broadcast stream gives every lane of a mapped transform the same numbers. A split stream is mapped at axis 0, and
    its lanes draw numbers of their own. The split draws one key from the stream, which goes on with new ones.

    It is a function (`backup = split_rngs(model, splits=4)`, later `restore_rngs(backup)`), a context manager (`with
    split_rngs(model, splits=4): ...`) and, without an object, a decorator: the streams in the function's arguments are
    split for the call, those of the object of a bound method too.

    Args:
      *objects: a stream, `Rngs`, or whatever holds them: modules of any family, containers, pytrees.
      splits: number of lanes, or the shape of a batch of lanes for nested transforms.
      only: a filter that picks streams. It is asked once about each stream's key, where that lies nearest to the top; a
        stream's name picks that stream.

    Returns:
      What puts the streams back; a decorator if no object was given.

    Raises:
      FilterError: `only` picks no stream.
      StreamError: a stream is split already.

    Example:
      >>> from liftcore_plugins.objects.rngs import Rngs
      >>> rngs = Rngs(0, dropout=1)
      >>> with split_rngs(rngs, splits=4, only="dropout"):
      ...     rngs.dropout.key.shape, rngs.default.key.shape
      ((4,), ())
      >>> rngs.dropout.key.shape, int(rngs.dropout.count)
      ((), 1)
    """
    picks = compile_filter(only)
    if objects:
        roots = {f"objects[{number}]": obj for number, obj in enumerate(objects)}
        return _split(Call("split_rngs", "objects"), roots, splits, only, picks)

    def decorate(fn: _Fn) -> _Fn:
        # By default `wraps` would copy the attributes of a callable module into the wrapper.
        @functools.wraps(fn, updated=())
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # Not before the call: a lifted call rebuilds this wrapper around an inner `fn`.
            target = Target(fn)
            call = Call("split_rngs", target.name)
            with _split(call, target.bind(call, args, kwargs, None).values, splits, only, picks):
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    return decorate


def restore_rngs(backup: SplitRngs) -> None:
    """Puts split streams back: the key is the one from before the split, and the count one further.

    Args:
      backup: what `split_rngs` returned.

    Example:
      >>> from liftcore_plugins.objects.rngs import Rngs
      >>> rngs = Rngs(0)
      >>> backup = split_rngs(rngs, splits=2)
      >>> restore_rngs(backup)
      >>> int(rngs.default.count)
      1
    """
    backup._restore()


def _split(
    call: Call, roots: Mapping[str, Any], splits: int | tuple[int, ...], only: Filter, picks: Compiled
) -> SplitRngs:
    sites = list(_sites(call, roots))
    picked = [stream for stream, site in sites if picks(site)]
    if not picked and only is not ...:
        names = sorted({stream.name for stream, _ in sites})
        raise FilterError(
            str(call),
            where=f"only={filter_text(only)}",
            found=[f"streams: {', '.join(names) or 'none'}"],
            why="The filter picks no stream.",
            ways=["Name one of the streams: only='dropout'.", "Leave `only` away to split every stream."],
        )
    backup = SplitRngs()
    backup._split(picked, splits)
    return backup


def _sites(call: Call, roots: Mapping[str, Any]) -> Iterator[tuple[RngStream, Site]]:
    """Finds each stream once, however it is reached, and says where its key lies."""
    forest = Walk(str(call)).forest(roots)
    for stream, place in zip(forest.objects, forest.places, strict=True):
        if isinstance(stream, RngStream):
            cell, path, owners = stream.key, (*place.path, "key"), (*place.owners, type(stream))
            yield stream, Site(call, "in", place.root, path, cell.value, cell, owners, tags_of(cell))
