"""Random streams: keys that never come twice, kept in the model as state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore_plugins.objects.arithmetic import raw
from liftcore_plugins.objects.errors import StreamError
from liftcore_plugins.objects.module import Module, contents
from liftcore_plugins.objects.variable import RngCount, RngKey

__all__ = ["RngStream", "Rngs"]

_DEFAULT = "default"


class RngStream(Module):
    """One random stream: a key and how many keys were drawn from it.

    The n-th key is `fold_in(key, n)`, so that the draws depend only on the seed and their number.

    Args:
      name: the stream's name, which is also its tag in filters.
      seed: an integer, a key, or the data of one. A batch of keys makes a stream that is split already.

    Attributes:
      key: the key from which it draws.
      count: how many keys it has given, uint32, of the key's shape.

    Example:
      >>> import jax
      >>> stream = RngStream("dropout", 0)
      >>> bool(stream() == jax.random.fold_in(jax.random.key(0), 0)), int(stream.count)
      (True, 1)
    """

    def __init__(self, name: str, seed: Any) -> None:
        key = _as_key(name, raw(seed))
        self.key = RngKey(key, stream=name)
        self.count = RngCount(jnp.zeros(key.shape, jnp.uint32), stream=name)

    @property
    def name(self) -> str:
        """The stream's name."""
        return str(self.key.metadata["stream"])

    def __call__(self) -> jax.Array:
        """Draws the next key.

        Returns:
          A new key, no array of keys.

        Raises:
          StreamError: the stream is split, so that it has one key for each lane of a mapped transform.
        """
        key, count = self.key.value, self.count.value
        if key.ndim:
            raise StreamError(
                f"draw from the stream {self.name!r}",
                found=[f"a batch of keys of shape {key.shape}"],
                why="A split stream has one key for each lane, and lanes draw inside of the mapped transform.",
                ways=[
                    "Draw inside, with the stream mapped at axis 0: in_axes=StateAxes({'rng': 0, ...: None}).",
                    "Put the scalar key back first: restore_rngs(backup), or leave the with-block of split_rngs.",
                    "Split it once for nested transforms: split_rngs(rngs, splits=(4, 3)).",
                ],
            )
        self.count.value = count + 1
        return jax.random.fold_in(key, count)

    def _shown(self) -> Iterable[tuple[str, Any]]:
        return [("", getattr(contents(self).get("key"), "_value", ...))]


class Rngs(Module):
    """Named random streams of a model: `rngs.dropout()` draws the next key of the stream `dropout`.

    A name that has no stream of its own draws from the stream `default`, if there is one. Streams are attributes:
    `rngs.noise = RngStream("noise", 7)` adds one.

    Args:
      seed: the default stream's seed: an integer, a key, or the data of one.
      **streams: seeds of named streams.

    Raises:
      StreamError: a seed is none of these, or the default stream has two.

    Example:
      >>> rngs = Rngs(0, dropout=1)
      >>> _ = rngs.dropout(), rngs.params(), rngs()
      >>> int(rngs.dropout.count), int(rngs.default.count)
      (1, 2)
    """

    def __init__(self, seed: Any = None, /, **streams: Any) -> None:
        if seed is not None:
            if _DEFAULT in streams:
                raise StreamError(
                    "Rngs",
                    found=["a seed by position", "default=..."],
                    why="Both are the seed of the default stream.",
                    ways=["Leave one of them away: Rngs(0)."],
                )
            streams = {_DEFAULT: seed, **streams}
        for name, each in streams.items():
            setattr(self, name, RngStream(name, each))

    def __call__(self) -> jax.Array:
        """Draws the next key of the default stream."""
        return self.default()

    def __getattr__(self, name: str) -> RngStream:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)
        streams = contents(self)
        if _DEFAULT in streams:
            default: RngStream = streams[_DEFAULT]
            return default
        raise StreamError(
            f"{type(self).__name__}.{name}",
            found=[f"streams: {', '.join(streams) or 'none'}"],
            why=f"There is neither a stream {name!r} nor a default one.",
            ways=[f"Name it when you make the streams: Rngs({name}=0).", "Give a default stream: Rngs(0)."],
        )


def _as_key(name: str, seed: Any) -> jax.Array:
    dtype, shape = getattr(seed, "dtype", None), getattr(seed, "shape", ())
    key: jax.Array
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = seed
        return key
    if dtype == jnp.uint32 and shape:
        key = jax.random.wrap_key_data(jnp.asarray(seed))
        return key
    if isinstance(seed, int) or (dtype is not None and not shape and jnp.issubdtype(dtype, np.integer)):
        key = jax.random.key(seed)
        return key
    raise StreamError(
        f"seed of the stream {name!r}",
        found=[f"{seed!r}, of type {type(seed).__name__}"],
        why="A seed is an integer, a key, or the data of a key.",
        ways=["Rngs(0)", "Rngs(jax.random.key(0))"],
    )
