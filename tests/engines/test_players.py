"""Players by name: their kinds, bots beside models, and what stays open when one of several models does not."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError, ModelError
from spag.core.options import SamplingConfig
from spag.engines import opening
from spag.engines.base import Engine
from spag.engines.bot import BotEngine
from spag.engines.opening import KeptModels, open_matches, open_models
from spag.engines.players import Kind, PlayerConfig, is_local, split_name
from spag.engines.scripted import ScriptedEngine
from spag.games.registry import get

KUHN = get("kuhn_poker")


@pytest.mark.parametrize(
    ("name", "kind", "rest"),
    [
        ("bot:random", Kind.BOT, "random"),
        ("openai:org/model:free", Kind.ENDPOINT, "org/model:free"),
        ("org/model", Kind.LOCAL, "org/model"),
        ("./bot:random", Kind.LOCAL, "./bot:random"),
        ("bots", Kind.LOCAL, "bots"),
    ],
)
def test_a_name_says_what_plays(name: str, kind: Kind, rest: str) -> None:
    assert split_name(name) == (kind, rest)
    assert is_local(name) == (kind is Kind.LOCAL)


def configs(*names: str) -> dict[str, PlayerConfig]:
    sampling = SamplingConfig(temperature=0.5)
    return {
        role: PlayerConfig(f"the {name}", ModelConfig(name=name), sampling)
        for role, name in zip(KUHN.roles, names, strict=True)
    }


def test_bots_and_models_play_together_and_models_come_from_the_given_function() -> None:
    asked: list[str] = []

    def scripted(models: Sequence[ModelConfig], *_: object) -> list[Engine]:
        asked.extend(model.name for model in models)
        return [ScriptedEngine(lambda _: "[pass]")] * len(models)

    one, two = KUHN.roles
    [found] = open_matches([configs("bot:random", "x/y")], KUHN, EngineConfig(), open_models=scripted)
    assert (found[one].model, found[two].model) == ("the bot:random", "the x/y")
    assert found[one].sampling.temperature == 0.5
    assert isinstance(found[one].engine, BotEngine) and isinstance(found[two].engine, ScriptedEngine)
    assert asked == ["x/y"]
    with pytest.raises(ConfigError, match=r"^bot:none: kuhn_poker has no such bot \(bots: bot:"):
        open_matches([configs("bot:none", "x/y")], KUHN, EngineConfig(), open_models=scripted)


def test_what_was_opened_before_a_model_failed_is_closed(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Closing(ScriptedEngine):
        def close(self) -> None:
            closed.append("closed")

    opened = opening._open_transformers

    def first_is_fake(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
        return [Closing(lambda _: "")] if models[0].name == str(model_folder) else opened(models, engine)

    monkeypatch.setattr(opening, "_open_transformers", first_is_fake)
    (tmp_path / "config.json").write_text("{}")
    models = [ModelConfig(name=str(folder), device="cpu") for folder in (model_folder, tmp_path)]
    with pytest.raises(ModelError, match=str(tmp_path)):
        open_models(models, EngineConfig(backend="transformers"))
    assert closed == ["closed"]
    with pytest.raises(ModelError, match="no such file or folder"):
        open_models([models[0], ModelConfig(name="./nothing")], EngineConfig(backend="transformers"))
    assert closed == ["closed"]  # nothing was opened


def test_a_base_and_its_adapter_are_opened_at_once_however_the_base_is_written(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = list[list[str]]()

    def noted(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
        groups.append([model.name for model in models])
        return [ScriptedEngine(lambda _: "")] * len(models)

    monkeypatch.setattr(opening, "_open_transformers", noted)
    monkeypatch.setenv("HOME", str(model_folder.parent))
    config = {"peft_type": "LORA", "base_model_name_or_path": str(model_folder), "r": 4}  # as training writes it
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    names = [f"~/{model_folder.name}", str(tmp_path)]
    models = [ModelConfig(name=name, device="cpu") for name in names]
    open_models(models, EngineConfig(backend="transformers"))
    assert groups == [names]


class _Caching(ScriptedEngine):
    """Counts how often its caches are freed, and notes its end."""

    freed, is_closed = 0, False

    def forget(self) -> None:
        self.freed += 1

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.slow
def test_matches_share_engines_until_one_needs_another_model(tmp_path: Path) -> None:
    opened, engines = list[list[str]](), list[list[_Caching]]()

    def scripted(models: Sequence[ModelConfig], _: EngineConfig) -> list[Engine]:
        opened.append([model.name for model in models])
        engines.append([_Caching(lambda _: "") for _ in models])
        return [*engines[-1]]

    def closed() -> list[set[bool]]:
        return [{one.is_closed for one in group} for group in engines]

    family = ["x/base", *(str(tmp_path / name) for name in ("first", "second"))]
    for name in family[1:]:
        Path(name).mkdir()
        config = {"peft_type": "LORA", "base_model_name_or_path": "x/base", "r": 4}
        (Path(name) / "adapter_config.json").write_text(json.dumps(config))
    base, first, second, other = (ModelConfig(name=name) for name in (*family, "x/other"))
    kept = KeptModels([base, first, second, other], scripted)
    one, two = kept([first, second], EngineConfig())
    assert kept([second, first], EngineConfig()) == [two, one]
    assert isinstance(one, _Caching) and not one.freed
    kept([base], EngineConfig())  # its adapters' base was opened beside them
    assert one.freed == 1  # it plays in none of these games
    assert [sorted(names) for names in opened] == [sorted(family)] and closed() == [{False}]
    kept([other, first], EngineConfig())
    assert closed() == [{True}, {False}] and set(opened[1]) == {*family, "x/other"}
    kept.close()
    assert closed() == [{True}, {True}]
    kept([other], EngineConfig())
    assert opened[2] == ["x/other"]
