"""Base models without a chat template: a prompt that asks for thought and answer in tags, and what is said of those."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from samplings import sampling_with
from spag.algorithms.online_settings import OnlineSampling
from spag.algorithms.reinforce import as_sampled, trained_turns
from spag.core.episodes import TrainingSample
from spag.core.options import ThinkingConfig
from spag.core.thinking import answered
from spag.core.types import Split
from spag.engines.base import Completion, FinishReason, Player, Request, text_before_stop
from spag.engines.scripted import ScriptedEngine
from spag.engines.transformers.engine import TransformersEngine
from spag.evaluation.exact_metrics import probabilities_of
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.registry import get
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import encode_sampled, encode_samples
from spag.models.tokens import PromptStyle, decode_reply, encode_prompt
from spag.rollout.runner import game_specs, play
from tiny_model import make_model

TAGGED = PromptStyle.TAGGED
MARKS = ["<think>", "</think>", "<answer>", "</answer>"]
VOCABULARY = 262  # 256 bytes, two special tokens, four marks
THINKING = (
    "A conversation between a user and an assistant. The user makes a request, and the assistant first reasons about "
    "it between <think> and </think>, which nobody else reads, and then gives its answer between <answer> and "
    "</answer>.\n\nUser: Hi\n\nAssistant: <think>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that writes each mark with one token."""
    folder = make_model(tmp_path_factory.mktemp("model") / "base", vocab_size=VOCABULARY)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(MARKS)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("text", "thinks", "speaks"),
    [
        (
            "<think>a</think> <answer>[bet]</answer>",
            "<think>a</think>[bet]",
            "[bet]",
        ),
        (
            "<think>a</think>So: \\boxed{[bet]}.",
            "<think>a\nSo: .</think>[bet]",
            "[bet]",
        ),  # all but the answer is thought
        ("<think>a</think>\\boxed{x{y}z} and \\boxed{b}", "<think>a\nand \\boxed{b}</think>x{y}z", "x{y}z"),
        ("<think>a</think><answer>It is \\boxed{[bet]}.</answer>", "<think>a</think>[bet]", "[bet]"),
        ("<think>a</think><answer>[be", "<think>a</think>[be", "[be"),  # cut
        ("<think>a</think>\\boxed{[be", "<think>a</think>[be", "[be"),
        ("<think>a</think>[bet]", "<think>a\n[bet]</think>", ""),  # no answer
        ("<think><answer>[bet]</answer>", "<think><answer>[bet]</answer>", ""),  # a thought that never closes
        ("<think><answer>a</answer></think><answer>b</answer>", "<think><answer>a</answer></think>b", "b"),
        ("<answer>[bet]", "<think></think>[bet]", "[bet]"),
        ("", "<think></think>", ""),
    ],
)
def test_only_the_answer_is_said(text: str, thinks: str, speaks: str) -> None:
    assert answered(text, thinking=True) == thinks
    assert answered(text, thinking=False) == speaks


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>\n</think>\n<answer>a", None),  # stop strings count in the answer alone
        ("<think>\n</think>\n<answer>a\nb", "<think>\n</think>\n<answer>a"),
        ("<think></think><answer>a</answer> and more", "<think></think><answer>a"),
        ("<think></think>It is \\boxed{a{b}} and more", "<think></think>It is \\boxed{a{b}"),
        ("<think><answer>a</answer>", None),
        ("<think></think>It is", None),
    ],
)
def test_a_reply_ends_with_its_answer(text: str, kept: str | None) -> None:
    assert text_before_stop(text, ("\n",), thinking=True, tagged=True) == kept


def test_prompts_ask_for_tags_and_open_the_first(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.decode(encode_prompt(tokenizer, "Hi", TAGGED, thinking=True)) == f"<s>{THINKING}"
    plain = tokenizer.decode(encode_prompt(tokenizer, "Hi", TAGGED))
    assert plain.endswith("gives its answer between <answer> and </answer>.\n\nUser: Hi\n\nAssistant: <answer>")


@pytest.mark.parametrize("limit", [0, 100])
def test_games_hear_only_the_answer(limit: int) -> None:
    game = get("kuhn_poker")
    asked: list[Request] = []

    def reply(request: Request) -> str:
        asked.append(request)
        move = "[check]" if "[check] or [bet]" in request.prompt[-60:] else "[call]"
        thought = "zebra</think>\n\nplayer_0: So <answer>" if limit else ""
        return f"{thought}{move}</answer> zebra"

    player = Player(ScriptedEngine(reply, tagged=True), "m", sampling_with(thought_tokens=limit))
    played = list(play(game_specs(game.tasks(Split.TRAIN, 2, 0), 1, 0), dict.fromkeys(game.roles, player), game=game))
    said = [one for episode in played for one in episode.history]
    assert {one.content for one in said} == {"[check]"}
    assert {one.thought for one in said} == ({"zebra\nplayer_0: So"} if limit else {None})
    assert not any("zebra" in request.prompt for request in asked)


@pytest.fixture(scope="module", params=[0, 200])
def replies(folder: Path, tokenizer: PreTrainedTokenizerBase, request: pytest.FixtureRequest) -> list[Completion]:
    """Replies of a random model, which writes every mark sometimes."""
    limit = request.param
    engine = TransformersEngine(load_model(str(folder), dtype="float32"), tokenizer, style=TAGGED)
    sampling = sampling_with(temperature=1.0, max_new_tokens=300, min_new_tokens=300 + limit, thought_tokens=limit)
    for seed in range(12):
        engine.submit(Request(str(seed), "Hi", sampling, seed))
    found: list[Completion] = []
    while len(found) < 12:
        found += engine.poll()
    return found


@pytest.mark.slow
def test_the_engine_gives_thought_and_answer(replies: list[Completion], tokenizer: PreTrainedTokenizerBase) -> None:
    thinks = tokenizer.decode(replies[0].prompt_ids or ()).endswith("Assistant: <think>")
    ended = [one for one in replies if one.finish_reason is FinishReason.STOP]
    assert ended
    for one in replies:
        whole = ("<think>" if thinks else "<answer>") + decode_reply(
            tokenizer, one.prompt_ids or (), one.token_ids or ()
        )
        assert one.text == answered(whole, thinking=thinks)
    for one in ended:
        assert tokenizer.decode(one.token_ids or ()).endswith("</answer>")


def test_samples_hold_tags_as_sampled(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    game = get("kuhn_poker")
    engine = TransformersEngine(load_model(str(folder), dtype="float32"), tokenizer, style=TAGGED)
    sampling = OnlineSampling(max_new_tokens=5, min_new_tokens=0, thinking=ThinkingConfig(enabled=True, max_tokens=20))
    specs = game_specs(game.tasks(Split.TRAIN, 4, 0), 1, 0)
    played = list(play(specs, dict.fromkeys(game.roles, Player(engine, "policy", sampling)), game=game))
    for turn in (turn for role in game.roles for turn in trained_turns(played, role, None)):
        sample = as_sampled(turn, game, 1.0)
        assert sample is not None
        [encoded] = encode_sampled([sample], tokenizer, TAGGED, [str(sample.role)])
        assert tokenizer.decode(encoded.input_ids[: encoded.completion_start]).endswith("Assistant: <think>")
        assert tuple(encoded.completion) == turn.episode.history[turn.at].token_ids


@pytest.mark.parametrize(
    ("written", "thinking"), [("zebra</think> <answer>Hi.</answer>", True), ("Hi.</answer>", False)]
)
def test_offline_samples_too(tokenizer: PreTrainedTokenizerBase, written: str, thinking: bool) -> None:
    ids = tuple(tokenizer.encode(written, add_special_tokens=False))
    mark = "<think>" if thinking else "<answer>"
    sample = TrainingSample(prompt="q", completion="Hi.", completion_ids=ids, thinking=thinking)
    [encoded] = encode_samples([sample], tokenizer, TAGGED, 1000)
    assert tokenizer.decode(encoded.input_ids).endswith(f"User: q\n\nAssistant: {mark}{written}")
    other = TrainingSample(prompt="q", completion="Ho.", completion_ids=ids, thinking=thinking)  # another model's
    [encoded] = encode_samples([other], tokenizer, TAGGED, 1000)
    assert tokenizer.decode(encoded.input_ids).endswith("User: q\n\nAssistant: <answer>Ho.</answer></s>")
    assert tokenizer.decode(encoded.completion) == "Ho.</answer></s>"


def test_exact_figures_are_of_moves_between_tags(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Play stops at the closing tag, so whether an end token would follow does not count."""
    model, game = load_model(str(folder), dtype="float32"), KuhnPoker()
    close, text = tokenizer.convert_tokens_to_ids("</answer>"), game.prompt(game.decisions()[0].observation)
    found = probabilities_of(model, tokenizer, TAGGED, game, ["player_0"])
    move = game.decisions()[0].moves[0]
    said = [*tokenizer.encode(move, add_special_tokens=False), close]
    ids = [*encode_prompt(tokenizer, text, TAGGED), *said]
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    expected = sum(float(logprobs[at - 1, ids[at]]) for at in range(len(ids) - len(said), len(ids)))
    decision = game.decisions()[0].key
    assert found.policy[decision][move] * found.legal_mass[decision] == pytest.approx(
        float(torch.tensor(expected).exp()), rel=1e-3
    )
