"""Plans of these tests count equal phases once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from spag.planning import plan

FOUND: dict[tuple[Any, ...], Any] = {}


def remembered(count: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``count`` of a phase, settings or a game, and more numbers, computed once for equal arguments."""

    def counted(*arguments: Any) -> Any:
        key = count, *(repr(one.model_dump()) if isinstance(one, BaseModel) else one for one in arguments)
        if key not in FOUND:
            FOUND[key] = count(*arguments)
        return FOUND[key]

    return counted


@pytest.fixture(scope="module", autouse=True)
def counted_once() -> Iterator[None]:
    """Replaying and packing hundreds of games takes a second, and most plans here are of the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("teacher_work", "iteration_work"):
            patch.setattr(plan, name, remembered(getattr(plan, name)))
        yield
