"""The engine of a model with an adapter for each role: a request goes to the engine of its role's adapter."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spag.core.errors import EngineError
from spag.engines.base import Completion, Engine, Request, RequestError
from spag.models.roles import adapter_name, weights_of_adapter

if TYPE_CHECKING:
    from torch import Tensor


class RoleEngine(Engine):
    """``engines``: at least one, by role (``GAME/ROLE``)."""

    def __init__(self, name: str, engines: Mapping[str, Engine]) -> None:
        self.name, self.engines = name, dict(engines)
        self.concurrency = max(engine.concurrency for engine in self.engines.values())

    def submit(self, request: Request) -> None:
        if request.role not in self.engines:
            asked = request.role or "a request without a role"
            what = f"{self.name} has no adapter for {asked}, only for {', '.join(self.engines)}"
            raise RequestError(f"{request.id}: {what}")
        self.engines[request.role].submit(request)

    def poll(self) -> list[Completion]:
        """Return what one engine has finished. Meanwhile the others' requests form a batch."""
        for engine in self.engines.values():
            if finished := engine.poll():
                return finished
        return []

    def wake(self) -> None:
        for engine in self.engines.values():
            engine.wake()

    def partial(self, request_id: str) -> str | None:
        found = (engine.partial(request_id) for engine in self.engines.values())
        return next((text for text in found if text is not None), None)

    def update_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """Give each adapter its weights. Names are those of a model with all adapters (``adapter_name``)."""
        own = {role: weights_of_adapter(weights, adapter_name(role)) for role in self.engines}
        if sum(map(len, own.values())) < len(weights):
            raise EngineError(f"{self.name}: new weights are not those of its adapters, for {', '.join(self.engines)}")
        for role, engine in self.engines.items():
            if own[role]:
                engine.update_weights(own[role])

    def rest(self) -> bool:
        lost = [engine.rest() for engine in self.engines.values()]  # all of them
        return any(lost)

    def forget(self) -> None:
        for engine in self.engines.values():
            engine.forget()

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
