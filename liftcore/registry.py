"""Registries: what exists under which name, and which distribution provides it.

There is one registry for each kind of entry. All are empty until somebody looks: then every installed distribution
that declares plugins is asked for its table (`liftcore.tables`). The built-in plugins come in by the same door as a
stranger's. The form of a table is checked when it is discovered, an entry when it is loaded, an object when it is
added.
"""

from __future__ import annotations

import contextlib
import difflib
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from liftcore.errors import LiftWarning, RegistryError
from liftcore.tables import Entry, Provider, check_form, check_type, load, nested, read_tables

if TYPE_CHECKING:
    from liftcore.protocol import Case, Family, FamilyCase

__all__ = [
    "CATALOG",
    "Catalog",
    "Provider",
    "Registry",
    "cases",
    "families",
    "family_cases",
    "lifts",
    "objects",
    "register",
    "transforms",
]

T = TypeVar("T")


class Catalog:
    """The registries of one entry point group, its discovery, and the flat namespace of the public ones.

    Args:
      group: the entry point group.
      protocol: "module:attribute" of the protocol's version, which each table must name.
    """

    def __init__(self, group: str, protocol: str) -> None:
        self.group = group
        self.lock = threading.RLock()
        self._protocol = protocol
        self._registries: dict[str, Registry[Any]] = {}
        self._reserved: frozenset[str] = frozenset()
        self._broken: list[RegistryError] = []
        self._tables = 0
        self._discovered = False
        self._thread = threading.local()

    def __getitem__(self, kind: str) -> Registry[Any]:
        """The registry of a kind.

        Raises:
          RegistryError: there is no such kind.
        """
        if kind in self._registries:
            return self._registries[kind]
        kinds = ", ".join(self._registries)
        raise RegistryError(f"Kind {kind!r}", why="There is no such kind of entry.", ways=[f"Use one of: {kinds}."])

    def include(self, kind: str, registry: Registry[Any]) -> None:
        """Makes a registry the one of its kind."""
        self._registries[kind] = registry

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps the package's own names from being registered: a public entry could not be reached under them."""
        self._reserved |= frozenset(names)

    def names(self) -> tuple[str, ...]:
        """Names of all public entries: the attributes that plugins give to the package."""
        return tuple(sorted(name for registry in self._public() for name in registry.names()))

    def get(self, name: str) -> Any:
        """The public entry with this name.

        Raises:
          AttributeError: no public registry has it.
          RegistryError: it has a rival, or cannot be loaded.
        """
        self.discover()
        for registry in self._public():
            if name in registry.entries:
                return registry.get(name)
        error = self.unknown(f"lift.{name}", name, self.names())
        raise AttributeError(str(error)) from error.__cause__

    def unknown(self, attempted: str, name: str, known: Iterable[str]) -> RegistryError:
        """The error for a name that nobody registered."""
        close = difflib.get_close_matches(name, known)
        ways = [f"Did you mean {' or '.join(close)}?"] if close else []
        if self._tables:
            ways.append("Install the distribution that provides it, or register it: lift.register(kind, name, entry)")
        else:
            ways.append("No plugin is installed. In liftcore's source tree: python -m pip install -e .")
        error = RegistryError(
            attempted,
            found=[f"left out: {nested(broken)}" for broken in self._broken],
            why="Nothing is registered under that name.",
            ways=ways,
        )
        error.__cause__ = self._broken[0] if self._broken else None
        return error

    def clash(self, entry: Entry) -> RegistryError | None:
        """The error if an entry wants a name that is taken, and who has it."""
        found = [f"{rival}: {rival.origin()}" for rival in self._rivals(entry)]
        if self[entry.kind].public and entry.name in self._reserved:
            found.append(f"lift.{entry.name}: part of the package itself")
        if not found:
            return None
        return RegistryError(
            str(entry),
            found=[*found, f"{entry}: {entry.origin()}"],
            why="Both want the same name.",
            ways=["Register yours under another name.", "Uninstall the distribution that you do not want."],
        )

    def discover(self) -> None:
        """Reads the tables of all installed distributions, once.

        What cannot be used is left out with a warning that names its distribution; the rest is.

        Raises:
          RegistryError: a module that holds a table looks something up while it is read.
        """
        if self._discovered:
            return
        if getattr(self._thread, "reading", False):
            raise RegistryError(
                f"Discovery of the plugins in {self.group!r}",
                why="A module that holds a TABLE is plain data; this one looks something up while it is imported.",
                ways=['Move the code to a module of its own and name it in TABLE, as "module:attribute".'],
            )
        # Modules are imported outside of the lock: imports take locks too, and two locks in two orders can deadlock.
        self._thread.reading = True
        try:
            tables, broken = read_tables(self.group, pkgutil.resolve_name(self._protocol), self._registries)
        finally:
            self._thread.reading = False
        with self.lock:
            if self._discovered:
                return
            self._broken += broken
            for _, entries in tables:
                for entry in entries:
                    self._take(entry)
            self._tables = len(tables)
            self._discovered = True
        for error in self._broken:
            warnings.warn(str(error), LiftWarning, stacklevel=2)

    def _take(self, entry: Entry) -> None:
        entry.clash = self.clash(entry)
        if entry.clash is not None:
            # Neither has the better claim, so that neither is used, and each lookup says why.
            self._broken.append(entry.clash)
            for rival in self._rivals(entry):
                rival.clash = entry.clash
        self[entry.kind].entries.setdefault(entry.name, entry)

    def _public(self) -> list[Registry[Any]]:
        return [registry for registry in self._registries.values() if registry.public]

    def _rivals(self, entry: Entry) -> list[Entry]:
        own = self[entry.kind]
        namespace = self._public() if own.public else [own]
        taken = [registry.entries[entry.name] for registry in namespace if entry.name in registry.entries]
        return [rival for rival in taken if not rival.same(entry)]


class Registry(Generic[T]):
    """The entries of one kind.

    Args:
      catalog: the registries of which this is one.
      kind: the kind's name, as in a table.
      expected: "module:attribute" of the type of its entries, so that this module need not import it.
      public: whether entries are attributes of the package.

    Attributes:
      entries: entry by name; read it, and change it through the methods.
      version: grows with each change, for whoever keeps what it looked up.
    """

    def __init__(self, catalog: Catalog, kind: str, expected: str, *, public: bool = False) -> None:
        self.kind = kind
        self.public = public
        self.entries: dict[str, Entry] = {}
        self.version = 0
        self._expected = expected
        self._catalog = catalog
        catalog.include(kind, self)

    def add(self, name: str, entry: T | str, *, provider: Provider | None = None) -> None:
        """Adds an entry. The same one may be added twice.

        Args:
          name: its name, an identifier.
          entry: the object, or "module:attribute" of it, which is then loaded when it is first asked for.
          provider: who adds it, for messages.

        Raises:
          RegistryError: the name is taken, or the object is not of this kind.
        """
        self._catalog.discover()
        new = self._checked(name, entry, provider)
        with self._catalog.lock:
            clash = self._catalog.clash(new)
            if clash is not None:
                raise clash
            self._put(name, self.entries.get(name, new))

    def get(self, name: str) -> T:
        """The entry with this name, loaded if need be.

        Raises:
          RegistryError: there is none, two distributions provide it, or it cannot be loaded.
        """
        entry = self._entry(name)
        if entry.clash is not None:
            raise entry.clash
        if not entry.loaded:
            value = load(entry)
            check_type(entry, value, self._expected)
            entry.loaded = (value,)
        return entry.loaded[0]  # type: ignore[no-any-return]

    def names(self) -> tuple[str, ...]:
        """Names of all entries, sorted; nothing is loaded."""
        self._catalog.discover()
        return tuple(sorted(self.entries))

    def provider(self, name: str) -> Provider | None:
        """Who provides an entry; None for a call that did not say."""
        return self._entry(name).provider

    def remove(self, name: str) -> None:
        """Removes an entry.

        Raises:
          RegistryError: there is none.
        """
        self._entry(name)
        self._put(name, None)

    @contextlib.contextmanager
    def temporary(self, name: str, entry: T | str) -> Iterator[None]:
        """Adds an entry, or replaces one, for the time of a `with` block; for all threads.

        Raises:
          RegistryError: the object is not of this kind, or another public kind has the name.

        Example:
          >>> with transforms.temporary("twice", lambda f: lambda x: f(f(x))):
          ...     transforms.get("twice")(lambda x: x + 1)(0)
          2
        """
        self._catalog.discover()
        new = self._checked(name, entry, None)
        with self._catalog.lock:
            before = self.entries.get(name)
            self._put(name, None)
            clash = self._catalog.clash(new)
            self._put(name, new if clash is None else before)
        if clash is not None:
            raise clash
        try:
            yield
        finally:
            self._put(name, before)

    def _entry(self, name: str) -> Entry:
        names = self.names()
        entry = self.entries.get(name)
        if entry is None:
            raise self._catalog.unknown(f"{self.kind} {name!r}", name, names)
        return entry

    def _checked(self, name: str, given: T | str, provider: Provider | None) -> Entry:
        entry = Entry(self.kind, name, given, provider)
        check_form(entry)
        if not isinstance(given, str):
            check_type(entry, given, self._expected)
            entry.loaded = (given,)
        return entry

    def _put(self, name: str, entry: Entry | None) -> None:
        with self._catalog.lock:
            self.version += 1
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry


CATALOG = Catalog("liftcore.plugins", "liftcore.protocol:PROTOCOL")

#: Functions such as `lift.vmap`.
transforms: Registry[Callable[..., Any]] = Registry(CATALOG, "transform", "collections.abc:Callable", public=True)
#: What may stand in a prefix, such as `lift.StateAxes`.
lifts: Registry[Callable[..., Any]] = Registry(CATALOG, "lift", "collections.abc:Callable", public=True)
#: Anything else that the package shows, such as `lift.Param`.
objects: Registry[Any] = Registry(CATALOG, "object", "builtins:object", public=True)
#: Model libraries, by the import root of their classes.
families: Registry[Family] = Registry(CATALOG, "family", "liftcore.protocol:Family")
#: Examples, by the name of their transform.
cases: Registry[Case] = Registry(CATALOG, "case", "liftcore.protocol:Case")
#: Examples, by the name of their family.
family_cases: Registry[FamilyCase] = Registry(CATALOG, "family_case", "liftcore.protocol:FamilyCase")


@overload
def register(kind: str, name: str) -> Callable[[T], T]: ...
@overload
def register(kind: str, name: str, entry: T) -> T: ...
def register(kind: str, name: str, entry: Any = ...) -> Any:
    """Registers an entry from code, without a distribution; also as a decorator.

    Args:
      kind: "transform", "lift", "object", "family", "case" or "family_case".
      name: its name: `lift.NAME` for the first three.
      entry: the object, or "module:attribute" of it; left out when used as a decorator.

    Returns:
      The entry.

    Raises:
      RegistryError: the name is taken, or the object is not of this kind.

    Example:
      >>> @register("transform", "thrice")
      ... def thrice(f):
      ...     return lambda x: f(f(f(x)))
      >>> import liftcore as lift
      >>> lift.thrice(lambda x: x + 1)(0)
      3
      >>> transforms.remove("thrice")
    """
    if entry is ...:
        return lambda entry: register(kind, name, entry)
    CATALOG[kind].add(name, entry)
    return entry
