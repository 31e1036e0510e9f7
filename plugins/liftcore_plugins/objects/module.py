"""Modules: plain Python objects that hold variables, arrays, lists, dicts and one another."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, dataclass_transform

from liftcore.protocol import Node
from liftcore_plugins.objects.display import Shown
from liftcore_plugins.objects.errors import ObjectError
from liftcore_plugins.objects.notes import changed, notes_in, slot_reader, stamp
from liftcore_plugins.objects.variable import Variable

__all__ = ["NODE", "Module", "contents"]

_OPTIONS = frozenset(inspect.signature(dataclasses.dataclass).parameters) - {"cls"}


class _Attributes(Shown):
    """What a module is made of: a dict, and what is known of it."""

    __slots__ = ("__dict__", "__weakref__", "_exposed", "_notes", "_watched")


#: The dict itself, without the word that somebody has it.
contents = vars(_Attributes)["__dict__"].__get__

_replace_contents = vars(_Attributes)["__dict__"].__set__
_exposed = vars(_Attributes)["_exposed"]
_is_exposed = slot_reader(_exposed)
_watched = vars(_Attributes)["_watched"]
_is_watched = slot_reader(_watched)


def _tell(module: Module) -> None:
    """Tells that the structure of a module was changed, if anybody has looked at it."""
    if _is_watched(module):
        changed()


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field))
class Module(_Attributes):
    """Base of models: attributes of any kind, sharing and cycles included; compares and hashes by identity.

    A module is no pytree: a plain `jax.jit` would drop its updates without a word. Pass it to lifted transforms.

    Class options are those of `dataclasses.dataclass`: `class M(Module, kw_only=True)` makes M a dataclass. `eq` and
    `repr` are then off unless asked for. Options are not inherited, and a class without any is an ordinary class.

    Raises:
      ObjectError: the class has slots, or a field whose default is a module or variable, which all instances would
        share.

    Example:
      >>> import jax.numpy as jnp
      >>> from liftcore_plugins.objects.variable import Param
      >>> class Affine(Module, kw_only=True):
      ...     kernel: Param
      ...     scale: float = 2.0
      >>> Affine(kernel=Param(jnp.ones((3, 3))))
      Affine(kernel=Param(float32[3,3]), scale=2.0)
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in _OPTIONS & options.keys()}
        super().__init_subclass__(**options)
        if vars(cls).get("__slots__"):
            raise ObjectError(
                f"class {cls.__name__}",
                found=[f"__slots__ = {vars(cls)['__slots__']!r}"],
                why="A module is its attributes, in its __dict__; what stands in slots would be lost in a lifted call.",
                ways=["Leave __slots__ and slots=True away."],
            )
        if chosen:
            dataclasses.dataclass(**{"eq": chosen.get("order", False), "repr": False, **chosen})(cls)
            _check_defaults(cls)

    # Each change of attributes is told, so that a call need not look at all of them to see that there was none.
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        _tell(self)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        _tell(self)

    @property
    def __dict__(self) -> dict[str, Any]:
        # Whoever has the dict can change it at any time without a word.
        if not _is_exposed(self):
            _exposed.__set__(self, True)
            _tell(self)
        found: dict[str, Any] = contents(self)
        return found

    @__dict__.setter
    def __dict__(self, new: dict[str, Any]) -> None:
        _replace_contents(self, new)
        _exposed.__set__(self, True)
        _tell(self)

    def __getstate__(self) -> dict[str, Any]:
        return dict(contents(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        contents(self).update(state)
        _tell(self)

    def _shown(self) -> Iterable[tuple[str, Any]]:
        return list(contents(self).items())


def _check_defaults(cls: type) -> None:
    for field in dataclasses.fields(cls):
        if isinstance(field.default, (Module, Variable)):
            raise ObjectError(
                f"class {cls.__name__}",
                where=f"field {field.name}",
                found=[f"its default: {field.default!r}"],
                why="All instances would share this one object and its state.",
                ways=[f"Make one for each: {field.name}: ... = dataclasses.field(default_factory=lambda: ...)."],
            )


def _fill(module: Module, entries: Mapping[str, Any]) -> None:
    own, new = contents(module), dict(entries)
    own.clear()
    own.update(new)
    _tell(module)


def _tells(module: Module) -> bool:
    _watched.__set__(module, True)
    return not _is_exposed(module)


#: What a module is to the lift.
NODE = Node(
    items=contents,
    make=object.__new__,
    fill=_fill,
    notes=notes_in(vars(_Attributes)["_notes"]),
    stamp=stamp,
    tells=_tells,
)
