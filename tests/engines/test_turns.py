"""Copies of a model that take turns in one engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, tensor

from spag.core.options import SamplingConfig
from spag.engines.base import Completion, Engine, FinishReason, Request
from spag.engines.turns import TurnEngine, take_turns


@dataclass
class Echo(Engine):
    """Answers with the weight that it has, one request a poll, and notes whatever happens."""

    concurrency: int = 2
    weight: int = -1
    waiting: list[Request] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    forgetful: bool = False

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def poll(self) -> list[Completion]:
        found = [Completion(one.id, str(self.weight), FinishReason.EOS) for one in self.waiting[:1]]
        self.waiting = self.waiting[1:]
        return found

    def update_weights(self, weights: Mapping[str, Tensor]) -> None:
        assert not self.waiting, "weights change under requests"
        self.weight = int(weights["w"])
        self.events.append(f"takes {self.weight}")

    def rest(self) -> bool:
        self.events.append("rests")
        self.weight = -1 if self.forgetful else self.weight
        return self.forgetful

    def close(self) -> None:
        self.events.append("closed")


def weights(value: int) -> dict[str, Tensor]:
    return {"w": tensor(value)}


def ask(*engines: TurnEngine) -> list[str]:
    """Ask each engine twice, at once, and return what they say."""
    for at, engine in enumerate(engines):
        for number in range(2):
            engine.submit(Request(f"{at}-{number}", "Hi", SamplingConfig(), 0))
    said: dict[str, str] = {}
    while len(said) < 2 * len(engines):
        for engine in engines[::-1]:
            said |= {one.id: one.text for one in engine.poll()}
    return [said[key] for key in sorted(said)]


def test_weights_change_once_for_all_requests_of_a_copy() -> None:
    echo = Echo()
    policy, start = take_turns(echo, ["policy", "start"], lambda: weights(0)).values()
    policy.update_weights(weights(1))
    assert echo.events == []  # when its turn comes
    assert ask(policy, start) == ["1", "1", "0", "0"]
    assert echo.events == ["takes 0", "takes 1"]  # the start was polled first
    assert ask(policy) == ["1", "1"]
    assert echo.events == ["takes 0", "takes 1"]  # nobody else had it meanwhile
    policy.update_weights(weights(2))
    assert ask(policy, start) == ["2", "2", "0", "0"]


def test_weights_that_sleep_has_dropped_are_given_again() -> None:
    for forgetful in (True, False):
        echo = Echo(forgetful=forgetful)
        policy, start = take_turns(echo, ["policy", "start"], lambda: weights(0)).values()
        assert ask(policy) == ["0", "0"]
        assert not policy.rest() and not start.rest()
        assert ask(policy) == ["0", "0"]
        assert echo.events.count("takes 0") == 1 + forgetful
