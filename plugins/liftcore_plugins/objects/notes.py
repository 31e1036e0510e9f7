"""What the engine keeps of own objects, and how it knows that they are what they were."""

from __future__ import annotations

import itertools
from typing import Any

from liftcore.protocol import Notes

__all__ = ["changed", "notes_in", "slot_reader", "stamp"]

_stamps = itertools.count()
_stamp = next(_stamps)


def changed() -> None:
    """Tells that the structure of some object was changed.

    Call it after the change: who reads the stamp first, and then looks, misses nothing.
    """
    global _stamp
    _stamp = next(_stamps)


def stamp() -> int:
    """Another number after each change of structure of any own object."""
    return _stamp


def slot_reader(slot: Any) -> Any:
    """Reads a slot by its descriptor, None where nothing was written."""
    read = slot.__get__

    def get(obj: Any) -> Any:
        try:
            return read(obj)
        except AttributeError:
            return None

    return get


def notes_in(slot: Any) -> Notes:
    """Notes that are kept in a slot, which is empty at first.

    Args:
      slot: the slot's descriptor.
    """
    return Notes(slot_reader(slot), slot.__set__)
