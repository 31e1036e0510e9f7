"""Notes in a slot: where the engine keeps what it knows of an object, as long as the object lives."""

from __future__ import annotations

from typing import Any

from liftcore.protocol import Notes

__all__ = ["notes_in"]


def notes_in(slot: Any) -> Notes:
    """Notes that are kept in a slot, which is empty at first.

    Args:
      slot: the slot's descriptor.
    """
    read = slot.__get__

    def get(obj: Any) -> Any:
        try:
            return read(obj)
        except AttributeError:
            return None

    return Notes(get, slot.__set__)
