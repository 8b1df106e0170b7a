"""Every shipped preset parses; faults come with the place and the nearest name."""

from pathlib import Path

import pytest

from spag.config.files import configuration_page, dump_config, load_config, option_names, parse_config, preset_names
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.games.taboo.rules import AdversarialTaboo

DOCS = Path(__file__).parent.parent / "docs"


def test_presets_are_these_and_parse() -> None:
    known = ["baichuan2-13b", "demo", "kuhn", "llama2-7b", "llama2-7b-lora", "llama2-7b-qlora", "qwen3", "taboo-online"]
    assert preset_names() == [*known, "textarena-mix"]
    assert all(isinstance(load_config(name), RunConfig) for name in known)  # the last needs an extra: tests/adapters/


def test_llama_preset_has_the_papers_hyper_parameters() -> None:
    config = load_config("llama2-7b")
    imitation, rl = config.imitation.training, config.offline_rl
    assert (imitation.learning_rate, imitation.kl_coef) == (5e-6, 0.1)
    assert (rl.learning_rate, rl.kl_coef, rl.sft_coef, rl.clip_range) == (2e-6, 0.2, 0.5, 0.2)
    for training in (imitation, rl):
        assert (training.epochs, training.global_batch_size, training.max_length) == (1, 128, 2048)
        assert (training.lr_scheduler, training.warmup_ratio, training.weight_decay) == ("warmup_decay", 0.03, 0.0)
    assert rl.loss_group == 2
    game, attacker = config.game.build(), config.selfplay.sampling_of("attacker")
    assert isinstance(game, AdversarialTaboo)
    assert (attacker.temperature, attacker.max_new_tokens, game.max_turns) == (1.2, 256, 5)
    assert (config.iterations, config.rewards.discount, game.words, game.top_words) == (3, 0.8, "frequency", 50_000)


@pytest.mark.parametrize("name", ["baichuan2-13b", "llama2-7b", "llama2-7b-lora", "llama2-7b-qlora"])
def test_paper_presets_sample_as_the_paper_does(name: str) -> None:
    selfplay = load_config(name).selfplay
    for role in ("attacker", "defender"):
        sampling = selfplay.sampling_of(role)
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_new_tokens) == (1.2, 50, 1.0, 256)


def test_a_partly_given_section_keeps_its_own_defaults() -> None:
    config = parse_config("imitation: {training: {epochs: 2}}\narena: {sampling: {max_new_tokens: 9}}", "test")
    assert config.imitation.training.learning_rate == 5e-6
    assert config.arena.sampling.temperature == 0.0


def test_dump_reads_back() -> None:
    config = load_config("demo", ["seed=3", "offline_rl.lora={}"])
    assert parse_config(dump_config(config), "dump") == config
    assert config.offline_rl.lora is not None
    assert config.offline_rl.lora.rank == 16


def test_overrides_reach_nested_options() -> None:
    config = load_config("demo", ["selfplay.tasks=7", "offline_rl.learning_rate=1e-6", "game.judge=paper", "model.device=null"])
    assert (config.selfplay.tasks, config.offline_rl.learning_rate, config.model.device) == (7, 1e-6, None)
    game = config.game.build()
    assert isinstance(game, AdversarialTaboo)
    assert (game.judge, game.words) == ("paper", "shipped")  # the preset's own setting stays


def test_a_role_samples_as_both_do_but_where_it_says_otherwise() -> None:
    text = "selfplay: {sampling: {temperature: 0.7, max_new_tokens: 40}, roles: {defender: {temperature: 0}}}"
    selfplay = parse_config(text, "test", ["selfplay.roles.defender.top_k=5"]).selfplay
    attacker, defender = selfplay.sampling_of("attacker"), selfplay.sampling_of("defender")
    assert (attacker.temperature, attacker.max_new_tokens, attacker.top_k) == (0.7, 40, 0)
    assert (defender.temperature, defender.max_new_tokens, defender.top_k) == (0.0, 40, 5)


OLD = """
seed: 4
game: {max_turns: 3, judge: paper, prompts: null}
words: {source: shipped, top: 2000}
selfplay:
  words: 64
  repeats: 2
  attacker: {temperature: 0.7, max_new_tokens: 40}
  defender: {temperature: 0.9, max_new_tokens: 40}
arena:
  words: 16
"""
"""Options as runs before schema 2 wrote them to their config.yaml."""
NEW = """
seed: 4
game: {max_turns: 3, judge: paper, words: shipped, top_words: 2000}
selfplay:
  tasks: 64
  repeats: 2
  roles:
    attacker: {temperature: 0.7, max_new_tokens: 40}
    defender: {temperature: 0.9, max_new_tokens: 40}
arena: {tasks: 16}
"""


def test_options_of_older_files_are_read() -> None:
    assert parse_config(OLD, "old") == parse_config(NEW, "new")


def test_options_of_older_commands_are_read() -> None:
    old = ["words.source=shipped", "words.top=50", "selfplay.words=7", "selfplay.attacker.top_k=3", "selfplay.defender={top_k: 4}"]
    new = ["game.words=shipped", "game.top_words=50", "selfplay.tasks=7", "selfplay.roles.attacker.top_k=3"]
    new += ["selfplay.roles.defender={top_k: 4}", "arena.tasks=5"]
    assert parse_config("", "test", [*old, "arena.words=5"]) == parse_config("", "test", new)
    assert parse_config(OLD, "test", ["selfplay.words=7", "arena.words=5"]) == parse_config(
        NEW, "test", ["selfplay.tasks=7", "arena.tasks=5"]
    )


def test_an_option_under_both_names_has_the_value_of_todays() -> None:
    assert parse_config("arena: {words: 3, tasks: 5}", "test").arena.tasks == 5


def test_another_game_brings_its_own_settings() -> None:
    config = load_config("demo", ["game.name=kuhn_poker"])
    assert config.game.build().name == "kuhn_poker"
    hands = load_config("demo", ["game.hands=12", "game.name=kuhn_poker"])
    assert hands == load_config("demo", ["game.name=kuhn_poker", "game.hands=12"])  # in whatever order
    assert hands.game.model_extra == {"hands": 12}
    assert load_config("demo", ["game.name=adversarial_taboo"]) == load_config("demo")  # the same game keeps those of the preset


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("learning_rate: 1", [], "test: unknown option learning_rate"),
        ("offline_rl: {learnig_rate: 1}", [], "unknown option offline_rl.learnig_rate; did you mean offline_rl.learning_rate?"),
        ("", ["selfplay.task=3"], "unknown option selfplay.task; did you mean selfplay.tasks?"),
        ("", ["self_play.tasks=3"], "unknown option self_play; did you mean selfplay?"),
        ("", ["selfplay.tasks"], "--set selfplay.tasks: write it as a.b=value"),
        ("", ["selfplay.tasks=-1"], "selfplay.tasks: input should be greater than 0, got -1"),
        ("", ["selfplay.words=-1"], "selfplay.tasks: input should be greater than 0, got -1"),
        ("words: {sauce: shipped}", [], "test: unknown option words"),
        ("", ["game.judge=fair"], "game.judge: input should be 'strict' or 'paper', got 'fair'"),
        ("", ["game.max_turn=3"], "test: unknown option game.max_turn; did you mean game.max_turns?"),
        ("", ["game.name=kuhn_pokr"], "there is no game called 'kuhn_pokr'; did you mean kuhn_poker?"),
        ("", ["game.name=kuhn_poker", "game.words=shipped"], "unknown option game.words; "),
        ("", ["game=taboo"], "game: "),
        ("", ["selfplay.roles.atacker.top_k=3"], "selfplay.roles: adversarial_taboo has no role atacker; its roles are attacker, defender"),
        ("", ["rewards.roles=player_0"], "rewards.roles: adversarial_taboo has no role player_0; its roles are attacker, defender"),
        ("- 1", [], "test: expected a mapping of options, got list"),
        ("a: [", [], "test: not YAML"),
    ],
)
def test_faults_are_one_clear_line(text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "test", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_config_names_the_presets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such config file, and no preset of that name \(presets: baichuan2-13b, demo"):
        load_config(str(tmp_path / "none.yaml"))


def test_every_option_is_described_and_the_page_is_up_to_date() -> None:
    assert all(info.description for _, info in option_names())
    assert (DOCS / "configuration.md").read_text() == configuration_page(), "run make docs"
