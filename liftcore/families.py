"""Which family owns a class, and what the class is to the lift: a reference, a node, or neither."""

from __future__ import annotations

from typing import Any

from liftcore import registry
from liftcore.protocol import Family, Node, Reference

__all__ = ["adapted", "family_of", "is_object", "kind_of"]

_Owned = tuple[Family | None, Reference | Node | None]


class _Known:
    """What families said of classes, as long as the families are the same."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.owned: dict[type, _Owned] = {}


_known = _Known(-1)


def _lookup(cls: type) -> _Owned:
    global _known
    known = _known
    if known.version != registry.families.version:
        known = _known = _Known(registry.families.version)
    found = known.owned.get(cls)
    if found is None:
        found = known.owned[cls] = _ask(cls)
    return found


def _ask(cls: type) -> _Owned:
    answer: _Owned = (None, None)
    known = frozenset(registry.families.names())
    for root in dict.fromkeys(base.__module__.partition(".")[0] for base in cls.__mro__):
        if root in known:
            family = registry.families.get(root)
            kind = family.kind(cls)
            if kind is not None:
                answer = (family, kind)
                break
            answer = (answer[0] or family, None)
    return answer


def kind_of(cls: type) -> Reference | Node | None:
    """What a class is: a reference, a node, or None where JAX's own pytree registry decides.

    The family is found by the import roots of the class and its bases, loaded on first use, and asked once.
    """
    # Asked for every object of a walk: the usual answer without another call.
    known = _known
    found = known.owned.get(cls) if known.version == registry.families.version else None
    return _lookup(cls)[1] if found is None else found[1]


def family_of(cls: type) -> Family | None:
    """The family that owns a class, or None."""
    return _lookup(cls)[0]


def is_object(value: Any) -> bool:
    """Whether a value is a family's object (tree modules included)."""
    return _lookup(type(value))[1] is not None


def adapted(value: Any) -> Any:
    """A prefix leaf or filter of a model library's own, turned into ours; any other value as it is."""
    family = _lookup(type(value))[0]
    return value if family is None else family.adapt(value)
