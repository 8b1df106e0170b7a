"""Models with an adapter for each role: their folders, and the engine that hands a request to its role's adapter."""

import json
from pathlib import Path

import pytest
import torch

from spag.core.errors import ConfigError, EngineError, ModelError
from spag.engines.base import Request, Sampling
from spag.engines.roles import RoleEngine
from spag.engines.scripted import ScriptedEngine
from spag.models.finding import resolve_model
from spag.models.roles import adapter_name, adapter_names, model_of_role, models_of, read_roles, weights_of_adapter

KUHN = ("kuhn_poker/player_0", "kuhn_poker/player_1")


def checkpoint(folder: Path, roles: dict[str, str] | None = None) -> str:
    (folder / "roles.json").write_text(json.dumps({role: adapter_name(role) for role in KUHN} if roles is None else roles))
    return str(folder)


def request(role: str, id_: str = "1") -> Request:
    return Request(id_, "say", Sampling(), 0, role=role)


class Learner(ScriptedEngine):
    def __init__(self, says: str) -> None:
        super().__init__(lambda _: says)
        self.learned: list[str] = []

    def update_weights(self, weights: object) -> None:
        self.learned += weights  # type: ignore[operator]


def test_names_are_those_of_modules_and_folders() -> None:
    assert adapter_name("kuhn_poker/player_0") == "kuhn_poker-player_0"
    assert adapter_name("openspiel:go(board_size=5)/../black") == "openspiel-go-board_size-5-----black"
    with pytest.raises(ConfigError, match=r"a\.b/x and a:b/x would have adapters of one name"):
        adapter_names(["a.b/x", "a:b/x"])


def test_a_checkpoint_is_a_model_for_each_role(tmp_path: Path) -> None:
    name = checkpoint(tmp_path)
    assert model_of_role(name, "kuhn_poker", "player_1") == f"{tmp_path}/kuhn_poker-player_1"
    assert models_of(name) == [f"{tmp_path}/kuhn_poker-player_0", f"{tmp_path}/kuhn_poker-player_1"]
    assert model_of_role("some/model", "kuhn_poker", "player_1") == "some/model"
    assert read_roles("some/model") is None and models_of("some/model") == ["some/model"]
    with pytest.raises(ModelError, match="has no adapter for go/black, only for kuhn_poker/player_0, kuhn_poker/player_1"):
        model_of_role(name, "go", "black")


def test_where_one_model_is_needed_it_says_which_there_are(tmp_path: Path) -> None:
    name = checkpoint(tmp_path)
    with pytest.raises(ModelError, match=f"here one model is needed; name one: {name}/kuhn_poker-player_0, {name}/kuhn_poker-player_1"):
        resolve_model(name)


@pytest.mark.parametrize("roles", [{}, {"kuhn_poker/player_0": "../elsewhere"}, {"kuhn_poker/player_0": 3}, [1]])
def test_a_record_that_names_other_folders_is_refused(tmp_path: Path, roles: dict[str, str]) -> None:
    with pytest.raises(ModelError, match=r"roles\.json"):
        read_roles(checkpoint(tmp_path, roles))


def test_weights_go_by_the_names_of_a_lone_adapter() -> None:
    weights = {f"layer.lora_A.{adapter_name(role)}.weight": at for at, role in enumerate([*KUHN, f"{KUHN[1]}0"])}
    assert weights_of_adapter(weights, "kuhn_poker-player_1") == {"layer.lora_A.default.weight": 1}


def test_a_request_goes_to_the_engine_of_its_role() -> None:
    engine = RoleEngine("model", {role: Learner(says) for role, says in zip(KUHN, ("[bet]", "[pass]"), strict=True)})
    for number in "123":
        engine.submit(request(KUHN[int(number) % 2], number))
    found = {done.id: done.text for _ in range(4) for done in engine.poll()}
    assert found == {"1": "[pass]", "2": "[bet]", "3": "[pass]"}
    assert engine.poll() == []
    for role, told in (("go/black", "go/black"), ("", "a text of no role")):
        with pytest.raises(EngineError, match=f"model has no adapter for {told}, only for kuhn_poker/player_0, kuhn_poker/player_1"):
            engine.submit(request(role))


def test_new_weights_reach_the_engine_of_their_adapter() -> None:
    learners = {role: Learner("") for role in KUHN}
    engine = RoleEngine("model", learners)
    weights = {f"lora_{part}.{adapter_name(role)}.weight": torch.zeros(1) for role in KUHN for part in "AB"}
    engine.update_weights({name: value for name, value in weights.items() if "A" in name or "player_0" in name})
    assert learners[KUHN[0]].learned == ["lora_A.default.weight", "lora_B.default.weight"]
    assert learners[KUHN[1]].learned == ["lora_A.default.weight"]
    with pytest.raises(EngineError, match="not those of its adapters"):
        engine.update_weights({"embed.weight": torch.zeros(1)})
    with pytest.raises(EngineError, match="cannot take new weights"):
        RoleEngine("model", {KUHN[0]: ScriptedEngine(lambda _: "")}).update_weights({"lora_A.kuhn_poker-player_0.weight": torch.zeros(1)})
