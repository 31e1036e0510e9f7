"""Entries of registries, and the tables in which distributions declare them: their form, and nothing that has state.

A distribution declares an entry point in the group "liftcore.plugins" that names a *module of plain data*:

    # pyproject.toml
    [project.entry-points."liftcore.plugins"]
    my_plugin = "my_plugin.table"

    # my_plugin/table.py
    PROTOCOL = 1
    TABLE = {("transform", "twice"): "my_plugin.twice:twice"}
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pkgutil
import re
import typing
from collections.abc import Collection, Mapping
from typing import Any

from liftcore.errors import RegistryError

__all__ = ["Entry", "Provider", "Table", "check_form", "check_type", "load", "nested", "read_tables"]

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """Who registered an entry.

    Attributes:
      distribution: name of the distribution, as pip knows it.
      version: its version.
      table: the module whose TABLE names the entry; "" if a call added it.
    """

    distribution: str
    version: str
    table: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}" + (f" (TABLE of {self.table})" if self.table else "")


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """What was given for a name, by whom, and what it is once loaded.

    Attributes:
      kind: the kind of entry.
      name: its name.
      given: the object, or "module:attribute" of it.
      provider: who gave it; None for a call that did not say.
      loaded: a tuple of the object itself; empty until it is loaded.
      clash: why it cannot be used: another provider gave the same name.
    """

    kind: str
    name: str
    given: Any
    provider: Provider | None = None
    loaded: tuple[Any, ...] = ()
    clash: RegistryError | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def origin(self) -> str:
        """The row of the table (or the object that a call added) and its provider, for messages."""
        lazy = isinstance(self.given, str)
        row = f"{{({self.kind!r}, {self.name!r}): {self.given!r}}}" if lazy else f"{self.given!r:.80}"
        return f"{row}, from {self.provider or 'a call that added it'}"

    def same(self, other: Entry) -> bool:
        """Whether the other entry is this one, added twice."""
        if (self.kind, self.name) != (other.kind, other.name):
            return False
        if isinstance(self.given, str) and isinstance(other.given, str):
            return self.given == other.given
        return bool(self.loaded) and bool(other.loaded) and self.loaded[0] is other.loaded[0]


#: The entries of one distribution.
Table = tuple[Provider, tuple[Entry, ...]]


def check_form(entry: Entry) -> None:
    """Checks what can be told of an entry without loading it.

    Raises:
      RegistryError: its name is no identifier, or its string is not "module:attribute".
    """
    if not entry.name.isidentifier():
        raise RegistryError(str(entry), found=[entry.origin()], why="A name must be a Python identifier.")
    if isinstance(entry.given, str) and not _TARGET.fullmatch(entry.given):
        raise RegistryError(
            str(entry),
            found=[entry.origin()],
            why='A string must say where the object is, as "module:attribute".',
            ways=[f'Write "my_package.my_module:{entry.name}".'],
        )


def check_type(entry: Entry, value: Any, expected: str) -> None:
    """Checks that an entry's object is of its kind, and each field of it if it is a dataclass.

    Args:
      entry: the entry, for messages.
      value: its object.
      expected: "module:attribute" of the type.

    Raises:
      RegistryError: it is not.
    """
    import typeguard  # on first use: it takes longer to import than all of liftcore

    at = ""
    try:
        typeguard.check_type(value, pkgutil.resolve_name(expected))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            hints = typing.get_type_hints(type(value))
            for field in dataclasses.fields(value):
                at = f"field {field.name}: "
                typeguard.check_type(getattr(value, field.name), hints[field.name])
    except typeguard.TypeCheckError as error:
        raise RegistryError(
            str(entry),
            found=[entry.origin(), f"{at}{error}"],
            why=f"An entry of this kind must be what {expected.replace(':', '.')} says.",
        ) from error


def load(entry: Entry) -> Any:
    """Imports what an entry's string names.

    Raises:
      RegistryError: that fails.
    """
    try:
        return pkgutil.resolve_name(entry.given)
    except Exception as error:
        raise RegistryError(
            str(entry),
            found=[entry.origin(), repr(error)],
            why="It could not be loaded.",
            ways=_installs(error, entry.given),
        ) from error


def read_tables(group: str, protocol: int, kinds: Collection[str]) -> tuple[list[Table], list[RegistryError]]:
    """Reads the tables of all installed distributions, in the order of their names.

    Args:
      group: the entry point group.
      protocol: the version that each table must name as its PROTOCOL.
      kinds: the kinds of entries that a table may have.

    Returns:
      The tables, and an error for each that cannot be read.
    """
    tables, broken = [], []
    points = importlib.metadata.entry_points(group=group)
    for point in sorted(points, key=lambda point: (point.dist.name if point.dist else "", point.name)):
        provider = Provider(
            point.dist.name if point.dist else f"entry point {point.name}",
            point.dist.version if point.dist else "of no distribution",
            point.value,
        )
        try:
            tables.append((provider, _read(point.load(), provider, protocol, kinds)))
        except Exception as error:
            broken.append(
                RegistryError(
                    f"Plugins of {provider}",
                    found=[nested(error) if isinstance(error, RegistryError) else repr(error)],
                    why="The table could not be read, and none of its entries is used.",
                    ways=_installs(error, point.value),
                )
            )
            broken[-1].__cause__ = error
    return tables, broken


def _read(module: Any, provider: Provider, protocol: int, kinds: Collection[str]) -> tuple[Entry, ...]:
    import typeguard  # on first use: it takes longer to import than all of liftcore

    spoken = module.PROTOCOL
    if spoken != protocol:
        raise RegistryError(
            f"PROTOCOL = {spoken!r}",
            why=f"This version of the package speaks protocol {protocol}.",
            ways=[f"Install a version of {provider.distribution} for protocol {protocol}."],
        )
    typeguard.check_type(module.TABLE, Mapping)
    entries = []
    for key, given in module.TABLE.items():
        try:
            typeguard.check_type((key, given), tuple[tuple[str, str], str])
        except typeguard.TypeCheckError as error:
            raise RegistryError(
                f"TABLE, row {{{key!r}: {given!r}}}",
                found=[str(error)],
                why='A row must be of the form {(kind, name): "module:attribute"}.',
            ) from error
        entry = Entry(key[0], key[1], given, provider)
        if entry.kind not in kinds:
            raise RegistryError(
                str(entry),
                found=[entry.origin()],
                why=f"There is no such kind; there are {', '.join(kinds)}.",
            )
        check_form(entry)
        entries.append(entry)
    return tuple(entries)


def nested(error: RegistryError) -> str:
    """The text of an error as one line of what another one found."""
    return str(error).replace("\n", "\n    ")


def _installs(error: Exception, importing: str) -> list[str]:
    """The way out where somebody else's module is missing."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return []
    root = error.name.partition(".")[0]
    return [] if root == re.split("[.:]", importing)[0] else [f"Install what is missing: python -m pip install {root}"]
