"""Models with an adapter for each role: their folders, and the engine that hands a request to its role's adapter."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from samplings import sampling_with
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError, EngineError, ModelError
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Completion, Engine, Player, Request
from spag.engines.opening import open_model, open_models
from spag.engines.roles import RoleEngine
from spag.engines.scripted import ScriptedEngine
from spag.games.registry import get
from spag.models.finding import resolve_model
from spag.models.loading import load_model, load_tokenizer
from spag.models.roles import adapter_name, adapter_names, model_of_role, models_of, read_roles, weights_of_adapter
from spag.rollout.runner import PlayStats, game_specs, play_together

KUHN = ("kuhn_poker/player_0", "kuhn_poker/player_1")


def checkpoint(folder: Path, roles: dict[str, str] | None = None) -> str:
    (folder / "roles.json").write_text(
        json.dumps({role: adapter_name(role) for role in KUHN} if roles is None else roles)
    )
    return str(folder)


def request(role: str, id_: str = "1") -> Request:
    return Request(id_, "say", SamplingConfig(), 0, role=role)


class Learner(ScriptedEngine):
    def __init__(self, says: str) -> None:
        super().__init__(lambda _: says)
        self.learned: list[str] = []

    def update_weights(self, weights: object) -> None:
        self.learned += weights  # type: ignore[operator]


def test_a_role_s_adapter_plays_against_the_whole_of_them() -> None:
    """Both share that adapter's engine, so what either asked may come from a poll of the other."""
    game = get("kuhn_poker")
    shared, other = (ScriptedEngine(lambda _: "[pass]", concurrency=2) for _ in range(2))
    both = RoleEngine("both", dict(zip(KUHN, (shared, other), strict=True)))
    players = dict(
        zip(game.roles, (Player(shared, "one", SamplingConfig()), Player(both, "all", SamplingConfig())), strict=True)
    )
    specs = game_specs(game.tasks(Split.TRAIN, 4, 0), 2, 0)
    swapped = {role: players[other] for role, other in zip(game.roles, reversed(game.roles), strict=True)}
    games = [(spec, players if at % 2 else swapped) for at, spec in enumerate(specs)]
    played = [one for batch in play_together(game, games, PlayStats(), 4) for one in batch]
    assert sorted(one.id for one in played) == sorted(spec.id for spec in specs)


def test_names_are_those_of_modules_and_folders() -> None:
    assert adapter_name("kuhn_poker/player_0") == "kuhn_poker-player_0"
    assert adapter_name("openspiel:go(board_size=5)/../black") == "openspiel-go-board_size-5-----black"
    with pytest.raises(ConfigError, match=r"a\.b/x and a:b/x would share an adapter's name"):
        adapter_names(["a.b/x", "a:b/x"])


def test_a_checkpoint_is_a_model_for_each_role(tmp_path: Path) -> None:
    name = checkpoint(tmp_path)
    assert model_of_role(name, "kuhn_poker", "player_1") == f"{tmp_path}/kuhn_poker-player_1"
    assert models_of(name) == [f"{tmp_path}/kuhn_poker-player_0", f"{tmp_path}/kuhn_poker-player_1"]
    assert model_of_role("some/model", "kuhn_poker", "player_1") == "some/model"
    assert read_roles("some/model") is None and models_of("some/model") == ["some/model"]
    with pytest.raises(
        ModelError, match="has no adapter for go/black, only for kuhn_poker/player_0, kuhn_poker/player_1"
    ):
        model_of_role(name, "go", "black")


def test_where_one_model_is_needed_it_says_which_there_are(tmp_path: Path) -> None:
    name = checkpoint(tmp_path)
    with pytest.raises(
        ModelError,
        match=f"but one model is needed here; name one: {name}/kuhn_poker-player_0, {name}/kuhn_poker-player_1",
    ):
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
    for role, described in (("go/black", "go/black"), ("", "a request without a role")):
        with pytest.raises(
            EngineError,
            match=f"model has no adapter for {described}, only for kuhn_poker/player_0, kuhn_poker/player_1",
        ):
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
    with pytest.raises(EngineError, match=r"^ScriptedEngine accepts no new weights"):
        RoleEngine("model", {KUHN[0]: ScriptedEngine(lambda _: "")}).update_weights(
            {"lora_A.kuhn_poker-player_0.weight": torch.zeros(1)}
        )


def adapter_of(base: Path, folder: Path, seed: int) -> Path:
    """An adapter of the tiny model that says something else than the base model."""
    torch.manual_seed(seed)
    lora = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(load_model(str(base), dtype="float32", device="cpu"), lora).save_pretrained(folder)
    load_tokenizer(str(base)).save_pretrained(folder)
    return folder


def say(role: str, prompt: str, id_: str) -> Request:
    return Request(id_, prompt, sampling_with(1.0, max_new_tokens=5), int(id_), role=role)


def drain(engine: Engine, count: int) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    while len(found) < count:
        found |= {done.id: done for done in engine.poll()}
    return found


@pytest.mark.slow
def test_adapters_over_one_base_say_what_each_says_alone(model_folder: Path, tmp_path: Path) -> None:
    """Their requests take turns on one model, each with a cache of its own; new weights of one leave the other as it
    is.
    """
    for at, role in enumerate(KUHN):
        adapter_of(model_folder, tmp_path / adapter_name(role), at)
    whole, engines = ModelConfig(name=checkpoint(tmp_path), dtype="float32", device="cpu"), EngineConfig(concurrency=2)
    asked = [say(KUHN[turn % 2], f"ask {turn // 2} " * (turn // 2), str(turn)) for turn in range(12)]
    with ExitStack() as stack:
        [engine, base] = open_models([whole, whole.model_copy(update={"name": str(model_folder)})], engines)
        stack.callback(engine.close)
        stack.callback(base.close)
        expected: dict[str, Completion] = {}
        for role, name in zip(KUHN, models_of(whole.name), strict=True):
            alone = open_model(whole.model_copy(update={"name": name}), engines)
            for one in asked:
                if one.role == role:
                    alone.submit(one)
            expected |= drain(alone, 6)
        for _ in range(2):  # with cold caches, and with what the first round left in them
            for one in asked:
                engine.submit(one)
            found = drain(engine, 12)
            for id_, done in expected.items():
                assert (found[id_].token_ids, found[id_].text) == (done.token_ids, done.text)
                assert found[id_].logprobs == pytest.approx(done.logprobs, abs=1e-4)
        base.submit(asked[4])
        assert drain(base, 1)["4"].logprobs != pytest.approx(expected["4"].logprobs, abs=1e-2)
        own = load_file(tmp_path / adapter_name(KUHN[0]) / "adapter_model.safetensors")
        assert isinstance(engine, RoleEngine)
        engine.update_weights(
            {key.replace(".weight", f".{adapter_name(KUHN[0])}.weight"): 2 * value for key, value in own.items()}
        )
        for one in asked:
            engine.submit(one)
        for id_, done in drain(engine, 12).items():
            assert (done.logprobs == pytest.approx(expected[id_].logprobs, abs=1e-4)) == (int(id_) % 2 == 1)
