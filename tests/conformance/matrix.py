"""The conformance matrix: every case, with every lift type that it takes, over every family, out of the registry.

Nothing here names a transform, a lift type or a family (but for `jit` and `grad`, under which each cell is run as
well): what is registered is in the matrix, a stranger's plugin too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import functional, registry
from liftcore.protocol import Case, FamilyCase

__all__ = ["Cell", "Interrupted", "cells"]

LANES = 2
Arrays = Mapping[str, Any]


class Interrupted(Exception):
    """What a step raises half-way."""


def _draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _total(result: Any) -> Any:
    """One number that depends on every array of a result, in whatever order and container they stand."""
    return sum((jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(result)), jnp.float32(0))


def _same(found: Any, wanted: Any, what: str) -> None:
    mine, theirs = (dict(jax.tree_util.tree_flatten_with_path(tree)[0]) for tree in (found, wanted))
    assert mine.keys() == theirs.keys(), f"{what}: found {found!r}, wanted {wanted!r}"
    for keys, leaf in theirs.items():
        assert jnp.shape(mine[keys]) == jnp.shape(leaf), f"{what}{jax.tree_util.keystr(keys)}: another shape"
        assert jnp.result_type(mine[keys]) == jnp.result_type(leaf), (
            f"{what}{jax.tree_util.keystr(keys)}: another dtype"
        )
        np.testing.assert_allclose(
            mine[keys], leaf, rtol=2e-5, atol=1e-6, err_msg=f"{what}{jax.tree_util.keystr(keys)}"
        )


@dataclasses.dataclass(frozen=True)
class Cell:
    """One case over one family, with one lift type or none."""

    case: str
    lift_type: str | None
    family: str

    def __str__(self) -> str:
        lift_type = "" if self.lift_type is None else f" with {self.lift_type}"
        return f"{self.case}{lift_type} over {self.family}"

    @property
    def _of_case(self) -> Case:
        return registry.cases.get(self.case)

    @property
    def _of_family(self) -> FamilyCase:
        return registry.family_cases.get(self.family)

    def _picked(self) -> tuple[str, ...]:
        return ("kernel", "bias") if self.lift_type is None else ("kernel",)

    def _arrays(self) -> dict[str, Any]:
        picked = self._picked() if self._of_case.stacked else ()
        return {
            name: _draw(seed, *((LANES,) if name in picked else ()), *shape)
            for seed, (name, shape) in enumerate({"kernel": (3, 3), "bias": (3,)}.items())
        }

    def _step(self, model: Any, x: Any) -> tuple[Any, Any]:
        family = self._of_family
        y, arrays = family.apply(model, x), family.arrays(model)
        return y, family.write(model, {**arrays, "kernel": 0.5 * arrays["kernel"] + jnp.mean(y)})

    def lifted(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The case's transform of a function of a model and an array."""
        case = self._of_case
        if self.lift_type is None:
            return case.lift(f, case.prefix)
        return case.lift(f, case.lift_types[self.lift_type](registry.lifts.get(self.lift_type)))

    def plain(self) -> Callable[..., Any]:
        """What plain JAX makes of the step."""
        family = self._of_family

        def step(arrays: Arrays, x: Any) -> tuple[Any, Arrays]:
            y, after = self._step(family.make(arrays), x)
            return y, family.arrays(after)

        return self._of_case.plain(step, self._picked())

    def _gradient_arrays(self, model: Any) -> Callable[[Any], Arrays]:
        """Takes containers apart: whatever array an update replaces was in the container."""
        family = self._of_family

        def arrays(container: Any) -> Arrays:
            blank = functional.clone(model)
            before = family.arrays(blank)
            after = family.arrays(functional.update(blank, container))
            return {name: array for name, array in after.items() if array is not before[name]}

        return arrays

    def check_values(self, *outer: Callable[..., Any]) -> None:
        """Values, the model that comes back, and the model that was passed, against plain JAX.

        Args:
          *outer: lifted transforms of `f(model, x)` to run it under, the innermost first.
        """
        family, x = self._of_family, _draw(7, 2, 3)
        wanted, wanted_after = self.plain()(self._arrays(), x)
        run = self.lifted(self._step)
        for transform in outer:
            run = transform(run)
        for _ in range(2):  # the second call finds what the first has left in caches
            model = family.make(self._arrays())
            before = family.arrays(model)
            result, after = run(model, x)
            _same(self._of_case.read(result, self._gradient_arrays(model)), wanted, "result")
            self._check_model(model, before, after, wanted_after)

    def check_gradients(self, *outer: Callable[..., Any]) -> None:
        """The gradient of the result, against `jax.grad` of plain JAX; the model afterwards."""
        family, x = self._of_family, _draw(7, 2, 3)
        model = family.make(self._arrays())
        before = family.arrays(model)
        plain, lifted = self.plain(), self.lifted(self._step)
        wanted = jax.grad(lambda arrays: _total(plain(arrays, x)[0]))(self._arrays())
        run = registry.transforms.get("grad")(lambda model, x: _total(lifted(model, x)[0]))
        for transform in outer:
            run = transform(run)
        found = self._gradient_arrays(model)(run(model, x))
        _same(found, wanted, "gradient")
        self._check_model(model, before, None, plain(self._arrays(), x)[1])

    def check_interrupted(self) -> None:
        """A step that raises after it has written leaves the model as it was."""
        family = self._of_family
        model = family.make(self._arrays())
        before = family.arrays(model)

        def step(model: Any, x: Any) -> Any:
            self._step(model, x)
            raise Interrupted

        try:
            self.lifted(step)(model, _draw(7, 2, 3))
        except Interrupted:
            after = family.arrays(model)
            assert all(after[name] is array for name, array in before.items()), "an array was replaced"
        else:
            raise AssertionError("the error was lost")

    def _check_model(self, model: Any, before: Arrays, after: Any, wanted: Arrays) -> None:
        family = self._of_family
        twin = family.make(before)
        if family.write(twin, before) is twin:
            assert after is None or after is model, "another object came back than the one that was passed"
            _same(dict(family.arrays(model)), dict(wanted), "model afterwards")
        else:
            if after is not None:
                _same(dict(family.arrays(after)), dict(wanted), "model that came back")
            left = family.arrays(model)
            assert all(left[name] is array for name, array in before.items()), "a tree was written"


def cells() -> Iterator[Cell]:
    """All cells of the matrix, as the registry is now."""
    for case in registry.cases.names():
        for lift_type in (None, *registry.cases.get(case).lift_types):
            for family in registry.family_cases.names():
                yield Cell(case, lift_type, family)
