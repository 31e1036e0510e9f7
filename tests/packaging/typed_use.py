"""Read by mypy alone: what type checkers know of the face. An ignored error that is not there would be an error too."""

from __future__ import annotations

import liftcore as lift


def built_in_names_have_their_own_types() -> None:
    transform: int = lift.vmap  # type: ignore[assignment]
    lift_type: int = lift.StateAxes  # type: ignore[assignment]
    variable: int = lift.Param  # type: ignore[assignment]
    engine: int = lift.lift  # type: ignore[assignment]
    filters: int = lift.PathContains  # type: ignore[assignment]
    del transform, lift_type, variable, engine, filters


def a_strangers_name_may_be_anything() -> None:
    transform: int = lift.a_transform_of_some_other_distribution
    del transform


def what_is_registered_keeps_its_type() -> None:
    @lift.register("transform", "twice")
    def twice(x: int) -> int:
        return 2 * x

    decorated: str = twice(1)  # type: ignore[assignment]
    given: str = lift.register("object", "answer", 42)  # type: ignore[assignment]
    del decorated, given
