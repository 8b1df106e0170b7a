"""Every shipped preset parses; faults come with the place and the nearest name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from write_config_docs import configuration_page, phase_options

from spag import algorithms
from spag.algorithms.imitation import ImitationSettings
from spag.algorithms.reinforce import ReinforceSettings
from spag.algorithms.spag import SpagSettings
from spag.config.files import dump_config, load_config, option_names, parse_config
from spag.config.presets import PRESETS
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.games.registry import get
from spag.games.taboo.taboo import AdversarialTaboo

ROOT = Path(__file__).parents[2]
PAPER = ["baichuan2-13b", "llama2-7b", "llama2-7b-lora", "llama2-7b-qlora"]


def spag_of(config: RunConfig) -> SpagSettings:
    settings = next(phase.settings for phase in config.phases if phase.algorithm == "spag")
    assert isinstance(settings, SpagSettings)
    return settings


# those two need TextArena: tests/adapters/, test_source_presets.py
@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"textarena-mix", "spiral-qwen3-4b"}))
def test_presets_parse_and_read_back(name: str) -> None:
    config = load_config(name)
    assert parse_config(dump_config(config), "dump") == config


def test_every_preset_file_is_listed() -> None:
    files = (ROOT / "src" / "spag" / "config" / "presets").glob("*.yaml")
    assert sorted(PRESETS) == sorted(path.stem for path in files)


def test_there_are_few_options() -> None:
    of_phases = {name for _, options in phase_options() for name in options}  # one of several phases counts once
    assert len(list(option_names())) + len(of_phases) <= 130


def test_online_taboo_starts_from_the_demos_imitation() -> None:
    demo, online = (load_config(name) for name in ("demo", "taboo-online"))
    assert online.phases[0] == demo.phases[0]
    assert (online.model, online.game) == (demo.model, demo.game)


def test_llama_preset_has_the_papers_hyper_parameters() -> None:
    config = load_config("llama2-7b")
    imitation, rl = (phase.settings for phase in config.phases)
    assert isinstance(imitation, ImitationSettings) and isinstance(rl, SpagSettings)
    assert (imitation.learning_rate, imitation.kl_coef) == (5e-6, 0.1)
    assert (rl.learning_rate, rl.kl_coef, rl.sft_coef, rl.clip_range) == (2e-6, 0.2, 0.5, 0.2)
    for training in (imitation, rl):
        assert (training.epochs, training.global_batch_size, training.max_length) == (1, 128, 2048)
        assert (training.lr_scheduler, training.warmup_ratio, training.weight_decay) == ("warmup_decay", 0.03, 0.0)
        assert (training.completions, training.template) == ("text", "random")
    assert rl.discount == 0.8
    game = config.game.build()
    assert isinstance(game, AdversarialTaboo)
    assert (rl.iterations, rl.loss_group, game.words, game.top_words, game.max_turns) == (3, 2, "frequency", 50_000, 5)


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_sample_as_the_paper_does(name: str) -> None:
    sampling = spag_of(load_config(name)).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_new_tokens) == (1.2, 50, 1.0, 256)


def test_a_partly_given_section_keeps_its_own_defaults() -> None:
    config = parse_config("phases: [{algorithm: spag, epochs: 2}]\narena: {sampling: {max_new_tokens: 9}}", "test")
    assert spag_of(config).learning_rate == 2e-6
    assert config.arena.sampling.temperature == 0.0


def test_an_option_is_set_by_the_number_of_its_phase_or_by_its_algorithm() -> None:
    overrides = ["phases.1.tasks=7", "spag.learning_rate=1e-6", "spag.lora.rank=4", "imitation.epochs=3"]
    config = load_config("demo", [*overrides, "game.judge=paper", "model.device=null"])
    settings = spag_of(config)
    assert (settings.tasks, settings.learning_rate, settings.iterations) == (7, 1e-6, 1)
    assert settings.lora is not None and settings.lora.rank == 4
    assert config.phases[0].settings.epochs == 3 and config.model.device is None
    game = config.game.build()
    assert isinstance(game, AdversarialTaboo)
    assert (game.judge, game.words) == ("paper", "shipped")  # the preset's own setting stays


def test_an_opponent_that_is_set_joins_the_default_or_the_files() -> None:
    assert spag_of(load_config("llama2-7b", ["spag.opponents.base=0.25"])).opponents == {"self": 1.0, "base": 0.25}
    text = "phases: [{algorithm: spag, opponents: {start: 2}}]"
    assert spag_of(parse_config(text, "test", ["spag.opponents.base=0.25"])).opponents == {"start": 2, "base": 0.25}
    assert spag_of(parse_config(text, "test", ["spag.opponents={base: 1}"])).opponents == {"base": 1}


def test_phases_that_no_file_names_can_be_set() -> None:
    config = parse_config("", "test", ["phases.1.iterations=5", "imitation.epochs=2"])
    assert (spag_of(config).iterations, config.phases[0].settings.epochs) == (5, 2)
    replaced = parse_config("", "test", ["phases=[{algorithm: reinforce, steps: 4}]", "reinforce.games=8"])
    assert isinstance(replaced.phases[0].settings, ReinforceSettings)
    assert (replaced.phases[0].settings.steps, replaced.phases[0].settings.games) == (4, 8)


def test_another_game_brings_its_own_settings() -> None:
    config = load_config("demo", ["game.name=kuhn_poker"])
    assert config.game.build().name == "kuhn_poker"
    replaced = load_config("demo", ["reinforce.game.name=nim", "phases=[{algorithm: reinforce}]"])
    assert replaced.phases[0].game is not None and replaced.phases[0].game.build().name == "nim"
    hands = load_config("demo", ["game.hands=12", "game.name=kuhn_poker"])
    assert hands == load_config("demo", ["game.name=kuhn_poker", "game.hands=12"])  # in whatever order
    assert hands.game.model_extra == {"hands": 12}
    assert load_config("demo", ["game.name=adversarial_taboo"]) == load_config("demo")  # the same game keeps its own
    whole = ["game.name=kuhn_poker", "game={hands: 6}"]  # spag play --game kuhn_poker --set ...
    assert load_config("demo", whole) == load_config("demo", whole[::-1])
    assert load_config("demo", whole).game.model_extra == {"hands": 6}
    for named in ("game={name: nim, largest_heap: 7}", 'game={"name": "nim", "largest_heap": 7}'):
        assert load_config("demo", [named, "game.name=kuhn_poker"]).game.name == "kuhn_poker"  # the last one given
        assert load_config("demo", ["game.name=kuhn_poker", named]).game.name == "nim"
        both = load_config("demo", ["game.take=2", named]).game.model_extra or {}
        assert (both["largest_heap"], both["take"]) == (7, 2)
    kept = load_config("demo", ["game={max_turns: 5}"]).game.model_extra or {}
    assert (kept["max_turns"], kept["top_words"]) == (5, 2000)


def test_a_game_without_a_name_is_that_of_the_run_with_other_settings() -> None:
    text = """
game: {name: nim, largest_heap: 9, take: 2}
phases:
- {algorithm: reinforce, game: {take: 4}}
- {algorithm: group, mix: [{name: kuhn_poker}, {largest_heap: 6, weight: 2}, {game: {take: 4}, weight: 3}]}
"""
    config = parse_config(text, "test")
    one, mixed = config.phases
    assert one.game and one.game.build() == get("nim", largest_heap=9, take=4)
    games = [get("kuhn_poker"), get("nim", largest_heap=6, take=2), get("nim", largest_heap=9, take=4)]
    assert mixed.mix(config.game) == [*zip(games, (1, 2, 3), strict=True)]
    [_, spag] = load_config("demo", ["spag.game.max_turns=5"]).phases
    assert spag.game and (spag.game.model_extra or {})["top_words"] == 2000
    for override in ("reinforce.game.name=nim", "reinforce.game={name: nim}"):  # which is its name
        [one, _] = parse_config(text, "test", [override]).phases
        assert one.game and (one.game.model_extra or {})["take"] == 4
    [one, _] = parse_config(text, "test", ["reinforce.game={name: kuhn_poker}"]).phases
    assert one.game and one.game.build() == get("kuhn_poker")


@pytest.mark.parametrize("game", ["", "game: {max_turns: 4}", "game: {name: kuhn_poker}"])
def test_games_without_a_name_survive_a_dump(game: str) -> None:
    phases = "phases: [{algorithm: reinforce, game: {}}, {algorithm: group, mix: [{name: nim}, {weight: 2}]}]"
    config = parse_config(f"{game}\n{phases}", "test")
    assert parse_config(dump_config(config), "dump") == config


def test_a_phase_may_have_a_game_of_its_own() -> None:
    config = load_config("taboo-online", ["reinforce.game.hands=12", "reinforce.game.name=kuhn_poker"])
    assert [config.game_of(phase).name for phase in config.phases] == ["adversarial_taboo", "kuhn_poker"]


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("reward: 1", [], "test: unknown option reward; see docs/configuration.md"),
        ("learning_rate: 1", [], "learning_rate is an option of a phase: phases.0.learning_rate"),
        ("", ["spag.report_to=[]"], "unknown option phases.1.report_to; report_to is an option of the run: report_to"),
        ("", ["iterations=6"], "unknown option iterations; iterations is an option of a phase: phases.1.iterations"),
        ("phases: [{algorithm: imitation}, {algorithm: reinforce}]", ["steps=6"], "a phase: phases.1.steps"),
        ("", ["steps=6"], "steps is an option of phases with algorithm reinforce, group, turnwise"),
        ("", ["imitation.tasks=6"], "an option of the run: arena.tasks, or of a phase: phases.1.tasks"),
        ("", ["lora.rank=6"], "lora is an option of a phase: phases.0.lora"),
        ("phases: [{algorithm: reinforce}]", ["reinforce.tie=0"], "an option of a phase: phases.0.rewards.GAME.tie"),
        ("", ["spag.learning_rate=2..0e-6"], "phases.1.learning_rate: input should be a valid number"),
        ("", ["spag.lr=1e-6"], "unknown option phases.1.lr; did you mean phases.1.learning_rate?"),
        ("", ["spag.lora.r=8"], "phases.1.lora.r; phases.1.lora has rank, alpha, target_modules, quantize, per_role"),
        ("engine: {gpus: 2}", [], "unknown option engine.gpus; engine has concurrency, in_flight, backend, "),
        ("", ["spag.lora.lora_alpha=8"], "phases.1.lora.lora_alpha; did you mean phases.1.lora.alpha?"),
        ("spag: 3", [], "unknown option spag; write options of an algorithm in its phase: phases: [{algorithm: spag"),
        ("lr: 1", [], "unknown option lr; learning_rate is an option of a phase: phases.0.learning_rate"),
        ("", ["spag.task=3"], "unknown option phases.1.task; did you mean phases.1.tasks?"),
        ("", ["spga.tasks=3"], "unknown option spga; did you mean spag?"),
        ("", ["spag.tasks"], "--set spag.tasks: write it as a.b=value"),
        ("", ["spag.tasks=-1"], "--set spag.tasks=-1: phases.1.tasks: input should be greater than 0, got -1"),
        ("seed: true", [], "test: seed: input should be a number, not true or false, got True"),
        ("", ["spag.tasks=yes"], "phases.1.tasks: input should be a number, not true or false, got True"),
        ("", ["spag.learning_rate=true"], "phases.1.learning_rate: input should be a number, not true or false, got "),
        ("", ["spag.lora={rank: true}"], "phases.1.lora.rank: input should be a number, not true or false, got True"),
        ("", ["spag.opponents={self: true}"], "phases.1.opponents: input should be a number, not true or false, got "),
        ("", ["game.max_turns=false"], "game.max_turns: input should be a number, not true or false, got False"),
        (
            "phases: [{algorithm: reinforce, mix: [{name: nim, weight: true}]}]",
            [],
            "weight: input should be a number, not true or false, got True",
        ),
        ("", ["reinforce.steps=1"], "--set reinforce.steps: this run has no phase with algorithm reinforce"),
        ("", ["phases.2.epochs=1"], "--set phases.2.epochs: 2 is not one of the 2 entries, which count from 0"),
        (
            "phases: [{algorithm: spag}, {algorithm: spag}]",
            ["spag.epochs=2"],
            "--set spag.epochs: several phases are of spag; name one of phases.0, phases.1",
        ),
        ("phases: [spag]", [], "phases.0: input should be a mapping of options, got 'spag'"),
        ("phases: [{tasks: 3}]", [], "phases.0: a phase names its algorithm, as in algorithm: spag"),
        ("phases: [{algorithm: spagg}]", [], "there is no algorithm 'spagg'; did you mean spag?"),
        (
            "phases: [{algorithm: reinforce, reference: {ema: 0.1, every: 3}}]",
            [],
            "phases.0.reference: name one: {ema: 0.03} or {every: 40}, got {'ema': 0.1, 'every': 3}",
        ),
        ("", ["game.judge=fair"], "game.judge: input should be 'strict' or 'paper', got 'fair'"),
        ("", ["game.max_turn=3"], "--set game.max_turn=3: unknown option game.max_turn; did you mean game.max_turns?"),
        ("", ["game.name=kuhn_pokr"], "there is no game called 'kuhn_pokr'; did you mean kuhn_poker?"),
        ("", ["game.name=kuhn_poker", "game.words=shipped"], "unknown option game.words; "),
        ("phases: [{algorithm: imitation, game: {name: nim, heap: 3}}]", [], "unknown option phases.0.game.heap; "),
        (
            "phases: [{algorithm: reinforce, mix: [{name: nim}, {name: nim, heap: 3}]}]",
            [],
            "unknown option phases.0.mix.1.heap; did you mean phases.0.mix.1.largest_heap?",
        ),
        (
            "phases: [{algorithm: reinforce, mix: [{name: nim, weight: -1}]}]",
            [],
            "phases.0.mix.0.weight: input should be greater than 0, got -1",
        ),
        (
            "phases: [{algorithm: reinforce}]",
            ["phases.0.mix=[{name: nimm}]"],
            "--set phases.0.mix=[{name: nimm}]: phases.0.mix.0.name: there is no game called 'nimm'; did you mean nim?",
        ),
        (
            "phases: [{algorithm: reinforce, mix: [{name: nim, largest_heap: 4}]}]",
            [],
            "test: phases.0.mix.0.largest_heap: heaps of 1 to 4 stones do not fill both splits",
        ),
        (
            "phases: [{algorithm: reinforce, game: {language: de}}]",
            ["reinforce.game.judge=paper"],
            "--set reinforce.game.judge=paper: phases.0.game.judge: paper supports only English, not 'de'; set "
            "phases.0.game.judge=strict",
        ),
        ("", ["game=taboo"], "game: "),
        (
            "",
            ["spag.roles=player_0"],
            "phases.1.roles: adversarial_taboo has no role player_0; the roles are attacker, defender",
        ),
        (
            "phases: [{algorithm: reinforce, roles: attacker, mix: [{name: adversarial_taboo}, {name: nim}]}]",
            [],
            "phases.0.roles: nim has no role attacker; the roles are player_0, player_1",
        ),
        ("- 1", [], "test: expected a mapping of options, got list"),
        ("a: [", [], "test: not YAML"),
    ],
)
def test_faults_are_one_clear_line(text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "test", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_number_refuses_true_and_takes_numbers_written_as_text() -> None:
    for kind in (RunConfig, *(algorithms.get(name).Settings for name in algorithms.names())):
        for name, info in option_names(kind):
            default = info.get_default(call_default_factory=True)
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            if is_number and "by_role." not in name:  # those are in sections by the names of roles
                assert read_option(kind, name, str(default)) == default
                with pytest.raises(ValidationError, match="input should be a number, not true or false"):
                    read_option(kind, name, True)


def read_option(kind: type[BaseModel], name: str, value: Any) -> Any:
    """Validate ``value`` as the option called ``a.b``, and return what is made of it."""
    *sections, option = name.split(".")
    data: Any = {option: value}
    for section in reversed(sections):
        data = {section: data}
    found: Any = kind.model_validate(data)
    for part in (*sections, option):
        found = getattr(found, part)
    return found


def test_a_missing_config_names_the_presets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such config file, and no preset of that name \(presets: demo, nim"):
        load_config(str(tmp_path / "none.yaml"))


def test_every_option_is_described_and_the_page_is_up_to_date() -> None:
    described = [*option_names(), *(pair for _, options in phase_options() for pair in options.items())]
    assert [name for name, info in described if not info.description] == []
    assert {title for title, _ in phase_options()} >= algorithms.SHIPPED.keys()
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_page(), "run make docs"


def test_the_page_says_that_optional_sections_are_off() -> None:
    page = configuration_page()  # rank's default of 16 alone would read as if adapters were trained by default
    assert "| `lora` | `null` |" in page and '| `reference` | `"fixed"` |' in page
