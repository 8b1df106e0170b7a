"""Plans of these tests count equal phases once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from spag.planning import plan


def remembered(count: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``count`` of a phase, settings or a game, and more numbers, computed once for equal arguments."""
    found: dict[tuple[Any, ...], Any] = {}

    def counted(*arguments: Any) -> Any:
        key = tuple(repr(one.model_dump()) if isinstance(one, BaseModel) else one for one in arguments)
        if key not in found:
            found[key] = count(*arguments)
        return found[key]

    return counted


@pytest.fixture(scope="package", autouse=True)
def counted_once() -> Iterator[None]:
    """Replaying and packing hundreds of games takes a second, and most plans here are of the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("teacher_work", "iteration_work"):
            patch.setattr(plan, name, remembered(getattr(plan, name)))
        yield
