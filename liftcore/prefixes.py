"""Prefixes: which spelling stands for which argument, and for which leaf in it.

A prefix is a tree whose leaves are spellings of the transform (0, None, Carry), specs, lift types, or functions of a
leaf. It stops at objects with identity; for a tree module it may be module-shaped, whatever its static parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.errors import BindError, PrefixError
from liftcore.families import adapted, is_object, kind_of
from liftcore.paths import Path, plain_key, text
from liftcore.protocol import Arguments, Call, LiftType, Node, Site, Spec

__all__ = ["at", "by_parameter", "check_fits", "resolve", "selected", "spellings"]

Meaning = Callable[[Any, Site], Spec]


def _children(tree: Any) -> Mapping[Any, Any] | None:
    """Children of one level of a tree by plain key; None for what is a leaf of a prefix."""
    cls = type(tree)
    if cls is tuple or cls is list:
        return dict(enumerate(tree))
    if cls is dict:
        return tree  # type: ignore[no-any-return]
    if tree is None or isinstance(tree, (LiftType, Spec, int, str)):
        return None
    kind = kind_of(cls)
    if isinstance(kind, Node):
        static = kind.static(tree)
        return None if kind.identity else {key: child for key, child in kind.items(tree).items() if key not in static}
    if kind is not None or jax.tree_util.all_leaves((tree,)):
        return None
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda other: other is not tree)
    return {plain_key(keys[0]): child for keys, child in pairs}


def at(prefix: Any, path: Path) -> Any:
    """The prefix leaf that stands for a path.

    Example:
      >>> at(({"a": 0}, None), (0, "a")), at(({"a": 0}, None), (1, "b", 2))
      (0, None)
    """
    for key in path:
        children = _children(prefix)
        if children is None:
            break
        prefix = children[key]
    return adapted(prefix)


def _leaves(prefix: Any) -> Iterator[Any]:
    children = _children(prefix)
    if children is None:
        yield adapted(prefix)
    else:
        for child in children.values():
            yield from _leaves(child)


def spellings(prefix: Any, transform: str) -> Iterator[Any]:
    """All spellings that a prefix can give, so that buckets are known before the call.

    Raises:
      PrefixError: a lift type in it is not for this transform.
    """
    for leaf in _leaves(prefix):
        if isinstance(leaf, LiftType):
            for value in leaf.values(transform):
                yield from spellings(value, transform)
        elif callable(leaf):
            # What a function of the leaf gives is known for leaves only. Most give one spelling for arrays, and another
            # for the rest; what else comes up is an error then.
            for example in (jnp.zeros(()), None):
                with contextlib.suppress(Exception):
                    yield leaf(example)
        else:
            yield leaf


def resolve(prefix: Any, site: Site, meaning: Meaning) -> Spec:
    """The spec of one leaf under a prefix leaf."""
    while not isinstance(prefix, Spec):
        if isinstance(prefix, LiftType):
            prefix = adapted(prefix.resolve(site))
        elif callable(prefix):
            prefix = prefix(site.value)
        else:
            spec = meaning(prefix, site)
            if not isinstance(spec, Spec):
                raise PrefixError(
                    str(site.call),
                    where="LiftSpec.spec of the transform",
                    found=[f"spec({prefix!r}, site) gave {spec!r}"],
                    why="The meaning of a spelling is a Spec.",
                )
            return spec
    return prefix


def _shape(tree: Any) -> str:
    children = _children(tree)
    if children is None:
        return f"one {type(tree).__name__}"
    if type(tree) in (tuple, list):
        return f"a {type(tree).__name__} of {len(children)}"
    return f"a {type(tree).__name__} with {', '.join(map(repr, children)) or 'nothing in it'}"


def check_fits(prefix: Any, value: Any, call: Call, root: str) -> None:
    """Checks that a prefix is a tree prefix of a value.

    Raises:
      PrefixError: it is not; names the parameter, the path and both sides.
    """
    pending: list[tuple[Any, Any, Path]] = [(prefix, value, ())]
    while pending:
        tree, actual, path = pending.pop()
        wanted = _children(tree)
        if wanted is None:
            continue
        kind = kind_of(type(actual))
        if kind is not None and (not isinstance(kind, Node) or kind.identity):
            raise PrefixError(
                str(call),
                where=text(root, path),
                found=[f"the prefix is {_shape(tree)}: {tree!r}", f"the value is a {type(actual).__name__}"],
                why="A prefix stops at an object, since its parts may be shared.",
                ways=["Choose by filter instead: lift.StateAxes({'param': 0, ...: None})."],
            )
        found = _children(actual)
        # Of a module-shaped prefix only what stands at arrays matters; its static parts are anybody's.
        alike = type(tree) is type(actual)
        if found is not None and alike and (is_object(tree) or wanted.keys() == found.keys()):
            pending += [(child, found[key], (*path, key)) for key, child in wanted.items() if key in found]
            continue
        raise PrefixError(
            str(call),
            where=text(root, path),
            found=[f"the prefix is {_shape(tree)}: {tree!r}", f"the value is {_shape(actual)}"],
            why="A prefix has the same containers as the value, down to the place where it ends.",
            ways=[f"Write one spelling for all of {text(root, path)}, or a {type(actual).__name__} like it."],
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def by_parameter(prefix: Any, arguments: Arguments, *, word: str, keyword: Any) -> dict[str, Any]:
    """Gives each argument its part of a prefix.

    A tuple (or list) is by position, a dict of strings by parameter name (the others get the keyword's default), and
    anything else stands for every positional argument.

    Args:
      prefix: the user's prefix.
      arguments: the call's arguments.
      word: the option's name, such as "in_axes".
      keyword: what arguments passed by keyword get, as in JAX. The bound object and what is captured get None.

    Returns:
      A prefix for each argument's name.

    Raises:
      PrefixError: a length or a name does not fit.
    """
    result: dict[str, Any] = {**dict.fromkeys(arguments.names()), **dict.fromkeys(arguments.keywords, keyword)}
    if type(prefix) is dict and all(isinstance(name, str) for name in prefix):
        named = {*arguments.positional, *arguments.keywords, *arguments.parameters}
        named |= {arguments.bound} if arguments.bound else set()
        if unknown := [name for name in prefix if name not in named]:
            raise PrefixError(
                str(arguments.call),
                where=f"{word} names {_listed(map(repr, unknown))}",
                found=[f"arguments of this call: {_listed(name for name in arguments.names() if name in named)}"],
                why=f"A dict of strings at the top of {word} is by parameter name.",
                ways=[f"For an argument that is itself a dict, write a tuple around it: {word}=({{...}},)."],
            )
        result.update(dict.fromkeys(arguments.positional, keyword))
        result.update({name: child for name, child in prefix.items() if name in result})
        return result
    if type(prefix) not in (tuple, list):
        result.update(dict.fromkeys(arguments.positional, prefix))
        return result
    names = [*arguments.positional, *arguments.parameters[len(arguments.positional) :]]
    if len(prefix) < len(arguments.positional) or len(prefix) > len(names):
        raise PrefixError(
            str(arguments.call),
            where=f"{word} has {len(prefix)} entries: {prefix!r}",
            found=[f"{len(arguments.positional)} positional arguments: {_listed(arguments.positional)}"],
            why=f"A tuple at the top of {word} has one entry for each positional argument"
            + (f" ({arguments.bound} is bound and not counted)." if arguments.bound else "."),
            ways=[
                f"Write {word} with {len(arguments.positional)} entries.",
                f'Write it by name: {word}={{"{(arguments.positional or ("x",))[0]}": ...}}.',
            ],
        )
    passed = {*arguments.positional, *arguments.keywords}
    result.update({name: child for name, child in zip(names, prefix, strict=False) if name in passed})
    return result


def selected(
    arguments: Arguments, numbers: int | str | Sequence[int | str], names: str | Sequence[str] = (), *, word: str
) -> tuple[str, ...]:
    """Names of the arguments that argument numbers and names select.

    Args:
      arguments: the call's arguments.
      numbers: an int or several, negative ones counted from the end; strings are taken for names.
      names: a name or several.
      word: the options' name, such as "static_argnums".

    Returns:
      Those that this call has, in the order given.

    Raises:
      BindError: there is no such argument.
    """
    wanted = [numbers] if isinstance(numbers, (int, str)) else list(numbers)
    wanted += [names] if isinstance(names, str) else list(names)
    counted = [*arguments.positional, *arguments.parameters[len(arguments.positional) :]]
    present = {*arguments.positional, *arguments.keywords}
    chosen: dict[str, None] = {}
    for one in wanted:
        if isinstance(one, int) and -len(counted) <= one < len(counted):
            name = counted[one]
        elif isinstance(one, str) and one in {*counted, *present, *([arguments.bound] if arguments.bound else [])}:
            name = one
        else:
            raise BindError(
                str(arguments.call),
                where=f"{word} selects {one!r}",
                found=[f"arguments of this call: {_listed((*arguments.positional, *arguments.keywords))}"],
                why="There is no such argument"
                + (f"; {arguments.bound} is bound and not counted." if arguments.bound else "."),
                ways=["Select a positional argument by its number, any argument by its name."],
            )
        if name in present or name == arguments.bound:
            chosen[name] = None
    return tuple(chosen)
