"""A tiny model with a chat template that knows thinking: its prompts, its limits, its samples, an online step of it."""

import json
from pathlib import Path

import pytest
from tiny_run import config_for, train_here
from transformers import PreTrainedTokenizerBase

from samplings import sampling_with
from spag.algorithms.online_settings import OnlineSampling
from spag.algorithms.reinforce import as_sampled, trained_turns
from spag.core.episodes import TrainingSample
from spag.core.errors import ConfigError, ModelError
from spag.core.options import SamplingConfig, ThinkingConfig
from spag.core.types import Split
from spag.engines.base import Completion, Player, Request
from spag.engines.scripted import ScriptedEngine
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.vllm.engine import within_limits
from spag.games.registry import get
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import encode_sampled, encode_samples
from spag.models.tokens import PromptStyle, decode_reply, encode_prompt, opening_of
from spag.rollout.runner import PlayStats, game_specs, play
from spag.runs import checks
from spag.storage.episodes import read_episodes
from tiny_model import make_model

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}"
    "{% endif %}"
)
MARKS = ["<think>", "</think>"]
VOCABULARY = 260  # 256 bytes, two special tokens, two marks
THOUGHT, SPEECH = 300, 5


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with Qwen3's marks, whose template opens the thought."""
    folder = make_model(tmp_path_factory.mktemp("model") / "thinker", vocab_size=VOCABULARY)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(MARKS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(thinker: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(thinker))


@pytest.fixture(scope="module")
def replies(thinker: Path, tokenizer: PreTrainedTokenizerBase) -> list[Completion]:
    """Eight replies. No end token may come before the thought's limit, so that only marks and limits end one."""
    engine = TransformersEngine(load_model(str(thinker), dtype="float32"), tokenizer, style=PromptStyle.CHAT)
    sampling = sampling_with(temperature=1.0, max_new_tokens=SPEECH, min_new_tokens=THOUGHT, thought_tokens=THOUGHT)
    for seed in range(8):
        engine.submit(Request(str(seed), "Hi", sampling, seed))
    found: list[Completion] = []
    while len(found) < 8:
        found += engine.poll()
    return found


def test_the_template_is_asked_to_think(tokenizer: PreTrainedTokenizerBase) -> None:
    on = encode_prompt(tokenizer, "Hi", PromptStyle.CHAT, thinking=True)
    off = encode_prompt(tokenizer, "Hi", PromptStyle.CHAT)
    assert tokenizer.decode(on) == "[user]Hi</s>[assistant]<think>\n"
    assert tokenizer.decode(off) == "[user]Hi</s>[assistant]<think>\n\n</think>\n\n"
    assert [opening_of(tokenizer, ids, PromptStyle.CHAT, thinking=True) for ids in (on, off)] == ["<think>", ""]


def test_a_thought_that_a_template_always_opens_is_closed_for_those_who_do_not_think(thinker: Path) -> None:
    """DeepSeek's: the thought, and with it the secret word, would be said, and speech be trained as a thought."""
    tokenizer = load_tokenizer(str(thinker))
    tokenizer.chat_template = TEMPLATE.replace("if enable_thinking else '<think>\n\n</think>\n\n'", "")
    on, off = (encode_prompt(tokenizer, "Hi", PromptStyle.CHAT, thinking=thinking) for thinking in (True, False))
    assert tokenizer.decode(on) == "[user]Hi</s>[assistant]<think>\n"
    assert tokenizer.decode(off) == "[user]Hi</s>[assistant]<think>\n\n</think>\n\n"


@pytest.mark.slow
def test_thoughts_and_utterances_end_at_their_limits(
    replies: list[Completion], tokenizer: PreTrainedTokenizerBase
) -> None:
    close = tokenizer.convert_tokens_to_ids("</think>")
    closed = [one for one in replies if close in (one.token_ids or ())]
    assert closed and len(closed) < len(replies)  # 1 - (259 / 260) ** 300, about two thirds, close
    for one in replies:
        ids = list(one.token_ids or ())
        assert one.text.startswith("<think>")  # the template opened it
        assert len(ids) == (ids.index(close) + 1 + SPEECH if one in closed else THOUGHT)


def test_vllms_tokens_are_cut_where_ours_end(replies: list[Completion], tokenizer: PreTrainedTokenizerBase) -> None:
    sampling = sampling_with(max_new_tokens=SPEECH, thought_tokens=THOUGHT)
    close = tokenizer.convert_tokens_to_ids("</think>")
    for one in replies:
        ids = tuple(one.token_ids or ())
        longer = (*ids, *(9,) * (sampling.most_tokens - len(ids)))
        kept = within_limits(longer, lambda ids: "<think>" + decode_reply(tokenizer, (), ids), sampling)
        assert kept == ids
    late = (*(9,) * THOUGHT, close, 9)  # it closes behind its limit
    assert within_limits(late, lambda ids: "<think>" + decode_reply(tokenizer, (), ids), sampling) == late[:THOUGHT]


def test_samples_hold_what_was_sampled_behind_what_was_asked(thinker: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    game = get("kuhn_poker")
    engine = TransformersEngine(load_model(str(thinker), dtype="float32"), tokenizer, style=PromptStyle.CHAT)
    sampling = OnlineSampling(
        max_new_tokens=SPEECH, min_new_tokens=0, thinking=ThinkingConfig(enabled=True, max_tokens=20)
    )
    player = Player(engine, "policy", sampling)
    specs = game_specs(game.tasks(Split.TRAIN, 4, 0), 1, 0)
    played = list(play(specs, dict.fromkeys(game.roles, player), game=game))
    for turn in (turn for role in game.roles for turn in trained_turns(played, role, None)):
        sample, token_ids = as_sampled(turn, game, 1.0), turn.episode.history[turn.at].token_ids
        assert sample is not None and sample.thinking and sample.completion_ids == token_ids
        [encoded] = encode_sampled([sample], tokenizer, PromptStyle.CHAT, [str(sample.role)])
        prompt = tokenizer.decode(encoded.input_ids[: encoded.completion_start])
        assert prompt == f"[user]{sample.prompt}</s>[assistant]<think>\n"
        assert tuple(encoded.completion) == token_ids


def test_offline_samples_too(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tuple(tokenizer.encode("zebra</think>\n\nHi.", add_special_tokens=False))
    sample = TrainingSample(prompt="q", completion="Hi.", completion_ids=ids, thinking=True)
    [encoded] = encode_samples([sample], tokenizer, PromptStyle.CHAT, 100)
    assert tokenizer.decode(encoded.input_ids) == "[user]q</s>[assistant]<think>\nzebra</think>\n\nHi."
    other = TrainingSample(prompt="q", completion="Ho.", completion_ids=ids, thinking=True)  # another model's tokens
    [encoded] = encode_samples([other], tokenizer, PromptStyle.CHAT, 100)
    assert tokenizer.decode(encoded.input_ids) == "[user]q</s>[assistant]<think>\n\n</think>\n\nHo.</s>"


@pytest.mark.slow
def test_an_online_step_trains_thoughts_and_counts_those_that_are_cut(thinker: Path, tmp_path: Path) -> None:
    thinking = "{thinking: {enabled: true, max_tokens: 12}, max_new_tokens: 6, min_new_tokens: 0}"
    options = ["steps=1", "evaluate_every=null", f"sampling={thinking}"]
    config = config_for(thinker, "model.prompt_style=chat", *(f"reinforce.{option}" for option in options))
    train_here(config, tmp_path / "run")
    [row] = [json.loads(line) for line in (tmp_path / "run/1-reinforce/metrics.jsonl").read_text().splitlines()]
    first = row["kuhn_poker/player_0/cut_thoughts"]
    assert 0.5 < first <= 1.0 and row["kuhn_poker/player_0/length"] > 6
    [path] = (tmp_path / "run/1-reinforce/episodes").glob("*.jsonl")
    played = list(read_episodes(path))
    said = [episode.history[0] for episode in played]
    assert sum(one.finish_reason == "thought" for one in said) / len(said) == pytest.approx(first)
    assert all(one.thought is not None and one.token_ids and one.logprobs for one in said)
    assert {info.sampling["thinking"]["max_tokens"] for one in played for info in one.players.values()} == {12}


@pytest.mark.parametrize("style", ["plain", "chat"])
def test_a_chat_needs_the_templates_of_all_models_at_once(thinker: Path, tmp_path: Path, style: str) -> None:
    other = make_model(tmp_path / "other", vocab_size=VOCABULARY)
    config = config_for(thinker, f"model.prompt_style={style}", f'reinforce.opponents={{"{other}": 1}}')
    if style == "plain":
        return checks.check_run(config, config.game.build())
    refused = rf"^{other}: its tokenizer has no chat template; name a model with one, or"
    with pytest.raises(ModelError, match=refused):
        checks.check_run(config, config.game.build())
    tokenizer = other / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "chat_template": None}))
    with pytest.raises(ModelError, match=refused):
        checks.check_run(config, config.game.build())
    (other / "additional_chat_templates").mkdir()
    (other / "additional_chat_templates" / "default.jinja").write_text("{{ messages }}")
    checks.check_run(config, config.game.build())


@pytest.mark.parametrize(("max_length", "fits"), [(64, False), (65, True)])
def test_replies_that_leave_vllm_no_room_for_a_prompt_are_refused(
    thinker: Path, monkeypatch: pytest.MonkeyPatch, max_length: int, fits: bool
) -> None:
    monkeypatch.setattr("spag.engines.opening.installed_vllm", lambda: ("0.32.0", True))
    options = ["model.device=cpu", "engine.backend=vllm", f"engine.max_length={max_length}"]
    arena = "arena.sampling={max_new_tokens: 8}"
    thinking = "reinforce.sampling={thinking: {enabled: true, max_tokens: 48}, max_new_tokens: 16}"
    config = config_for(thinker, *options, arena, thinking)
    if fits:
        return checks.check_run(config, config.game.build())
    says = (
        r"phases.0.sampling: thinking.max_tokens=48 and max_new_tokens=16 leave no room for a prompt in "
        r"engine.max_length=64; raise it, or lower the others$"
    )
    with pytest.raises(ConfigError, match=says):
        checks.check_run(config, config.game.build())
    hot = config_for(thinker, *options, arena, "reinforce.sampling={max_new_tokens: 16, temperature: 3}")
    with pytest.raises(ConfigError, match=r"^phases\.0\.sampling\.temperature=3: vLLM allows at most 2; lower it$"):
        checks.check_run(hot, hot.game.build())
    other = config_for(thinker, *options[:1], "engine.backend=transformers", *options[2:], arena, thinking)
    return checks.check_run(other, other.game.build())  # that engine has no such limit


@pytest.mark.parametrize("kind", [{}, {"published": True}, None], ids=["play", "published", "online"])
def test_a_cut_thought_is_silence(kind: dict[str, bool] | None) -> None:
    """Also where other empty utterances are sampled again."""
    game, stats = get("kuhn_poker"), PlayStats()
    left = ["<think>zebra"]
    engine = ScriptedEngine(lambda _: left.pop() if left else "<think>a</think>[check]")
    section = OnlineSampling if kind is None else SamplingConfig
    thinking = {"thinking": {"enabled": True}}
    sampling = section.model_validate({**thinking, **(kind or {})})
    [task] = [task for task in game.tasks(Split.TRAIN, None, 0) if game.describe_task(task) == "J against K"][:1]
    players = dict.fromkeys(game.roles, Player(engine, "m", sampling))
    [episode] = play(game_specs([task], 1, 0), players, game=game, stats=stats)
    assert (episode.outcome, stats.retries, stats.cut_thoughts) == ("player_0_illegal", 0, 1)
