"""Every shipped preset parses; faults come with the place and the nearest name."""

from pathlib import Path

import pytest

from spag.config.files import configuration_page, dump_config, load_config, option_names, parse_config, preset_names
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError

DOCS = Path(__file__).parent.parent / "docs"


def test_presets_are_these_and_parse() -> None:
    assert preset_names() == ["baichuan2-13b", "demo", "llama2-7b", "llama2-7b-lora", "llama2-7b-qlora", "qwen3"]
    assert all(isinstance(load_config(name), RunConfig) for name in preset_names())


def test_llama_preset_has_the_papers_hyper_parameters() -> None:
    config = load_config("llama2-7b")
    imitation, rl = config.imitation.training, config.offline_rl
    assert (imitation.learning_rate, imitation.kl_coef) == (5e-6, 0.1)
    assert (rl.learning_rate, rl.kl_coef, rl.sft_coef, rl.clip_range) == (2e-6, 0.2, 0.5, 0.2)
    for training in (imitation, rl):
        assert (training.epochs, training.global_batch_size, training.max_length) == (1, 128, 2048)
        assert (training.lr_scheduler, training.warmup_ratio, training.weight_decay) == ("cosine", 0.03, 0.0)
    assert (config.selfplay.attacker.temperature, config.selfplay.attacker.max_new_tokens, config.game.max_turns) == (1.2, 256, 5)
    assert (config.iterations, config.rewards.discount, config.words.top) == (3, 0.8, 50_000)


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
    config = load_config("demo", ["selfplay.words=7", "offline_rl.learning_rate=1e-6", "game.judge=paper", "model.device=null"])
    assert (config.selfplay.words, config.offline_rl.learning_rate, config.game.judge, config.model.device) == (7, 1e-6, "paper", None)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("learning_rate: 1", [], "test: unknown option learning_rate"),
        ("offline_rl: {learnig_rate: 1}", [], "unknown option offline_rl.learnig_rate; did you mean offline_rl.learning_rate?"),
        ("", ["selfplay.word=3"], "unknown option selfplay.word; did you mean selfplay.words?"),
        ("", ["self_play.words=3"], "unknown option self_play; did you mean selfplay?"),
        ("", ["selfplay.words"], "--set selfplay.words: write it as a.b=value"),
        ("", ["selfplay.words=-1"], "selfplay.words: input should be greater than 0, got -1"),
        ("", ["game.judge=fair"], "game.judge: input should be 'strict' or 'paper', got 'fair'"),
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
