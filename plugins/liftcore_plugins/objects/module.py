"""Modules: plain Python objects that hold variables, arrays, lists, dicts and one another."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, dataclass_transform

from liftcore.protocol import Node
from liftcore_plugins.objects.display import Shown
from liftcore_plugins.objects.errors import ObjectError
from liftcore_plugins.objects.notes import notes_in
from liftcore_plugins.objects.variable import Variable

__all__ = ["NODE", "Module"]

_OPTIONS = frozenset(inspect.signature(dataclasses.dataclass).parameters) - {"cls"}


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field))
class Module(Shown):
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

    __slots__ = ("__dict__", "__weakref__", "_notes")

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

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def _shown(self) -> Iterable[tuple[str, Any]]:
        return vars(self).items()


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
    contents, new = vars(module), dict(entries)
    contents.clear()
    contents.update(new)


#: What a module is to the lift.
NODE = Node(items=vars, make=object.__new__, fill=_fill, notes=notes_in(vars(Module)["_notes"]))
