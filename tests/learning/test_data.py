"""Tokens, masks and batches."""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GenerationConfig

from spag.algorithms.base import FILLER, OTHER, SFT, Totals
from spag.algorithms.winners import RewardSettings, assign_rewards
from spag.core.episodes import SampleType, TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.learning.batches import TrainingData, Update, merge_equal
from spag.models.loading import load_tokenizer
from spag.models.samples import EncodedSample, collate, encode_sampled, encode_samples
from spag.models.tokens import PromptStyle
from taboo_games import episode_of

BOS, EOS = 0, 1


def encode(folder: Path, *samples: TrainingSample, max_length: int = 100):
    return encode_samples(samples, load_tokenizer(str(folder)), PromptStyle.PLAIN, max_length)


def test_tokens_are_bos_prompt_completion_eos_and_only_completion_and_eos_are_trained(model_folder: Path) -> None:
    (sample,) = encode(
        model_folder, TrainingSample(prompt="ab", completion="cd", role="defender", reward=2.0, weight=3.0)
    )
    tokenizer = load_tokenizer(str(model_folder))
    assert sample.input_ids.tolist() == [BOS, *tokenizer("abcd", add_special_tokens=False).input_ids, EOS]
    assert (sample.completion_start, len(sample.completion)) == (3, 3)
    assert sample.fed.tolist() == sample.input_ids.tolist()[:-1]  # the end token predicts nothing
    assert (sample.reward, sample.weight, sample.group) == (2.0, 3.0, 2)  # the only role


def test_chat_style_ends_the_completion_with_the_template_s_own_end_token(model_folder: Path) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (sample,) = encode_samples([TrainingSample(prompt="q", completion="t")], tokenizer, PromptStyle.CHAT, 100)
    assert tokenizer.decode(sample.input_ids) == "[user]q<end>[assistant]t<end>"
    assert tokenizer.decode(sample.completion) == "t<end>"


@pytest.mark.parametrize(
    ("max_length", "text", "trained"),
    [(100, "<s>qqqqabc</s>", "abc</s>"), (6, "qqabc</s>", "abc</s>"), (4, "abc</s>", "bc</s>"), (2, "c</s>", "</s>")],
)
def test_too_long_samples_lose_tokens_on_the_left(model_folder: Path, max_length: int, text: str, trained: str) -> None:
    (sample,) = encode(model_folder, TrainingSample(prompt="qqqq", completion="abc"), max_length=max_length)
    tokenizer = load_tokenizer(str(model_folder))
    assert tokenizer.decode(sample.input_ids) == text
    assert tokenizer.decode(sample.completion) == trained


def test_an_empty_completion_still_trains_the_end_token(model_folder: Path) -> None:
    (sample,) = encode(model_folder, TrainingSample(prompt="q", completion=""))
    assert sample.completion.tolist() == [EOS]


def test_tokens_are_trained_as_they_were_sampled(model_folder: Path) -> None:
    a, b, c = (ord_id(model_folder, char) for char in "abc")
    cut = TrainingSample(
        prompt="q", completion="ab", completion_ids=(a, b)
    )  # ran into the token limit: no end token was said
    (sample,) = encode(model_folder, cut)
    assert sample.completion.tolist() == [a, b]
    spaced = TrainingSample(
        prompt="q", completion="ab", completion_ids=(a, b, c, EOS)
    )  # its text was cut at a stop string
    assert encode(model_folder, spaced)[0].completion.tolist() == [a, b, c, EOS]
    (sample,) = encode(
        model_folder, TrainingSample(prompt="q", prompt_ids=(BOS, c, c), completion="ab", completion_ids=(a, b))
    )
    assert sample.input_ids.tolist() == [BOS, c, c, a, b]
    assert encode(model_folder, TrainingSample(prompt="q", completion="ab", truncated=True))[0].completion.tolist() == [
        a,
        b,
    ]


def test_white_space_around_an_utterance_is_trained_as_sampled_and_not_as_text(model_folder: Path) -> None:
    ids = (*load_tokenizer(str(model_folder)).encode(" Wet?\n", add_special_tokens=False), EOS)
    game = episode_of("river", " Wet?\n", "The river.")
    game = replace(game, history=(replace(game.history[0], token_ids=ids, finish_reason="eos"), game.history[1]))
    (sampled,), (text,) = (
        assign_rewards([game], settings=RewardSettings(completions=kept)) for kept in ("sampled", "text")
    )
    assert sampled.completion == text.completion == "Wet?"
    assert encode(model_folder, sampled)[0].completion.tolist() == [*ids]
    assert encode(model_folder, text)[0].completion.tolist() == [*ids[1:-2], EOS]  # one byte, one token


@pytest.mark.parametrize(
    "ids", [(99_999,), (-1, 3), (), None], ids=["beyond the vocabulary", "negative", "none", "unknown"]
)
def test_tokens_of_another_tokenizer_are_not_trained(model_folder: Path, ids: tuple[int, ...] | None) -> None:
    plain = TrainingSample(prompt="q", completion="ab")
    assert encode(model_folder, replace(plain, completion_ids=ids)) == encode(model_folder, plain)
    other = (ord_id(model_folder, "x"), EOS)
    assert encode(model_folder, replace(plain, completion_ids=other)) == encode(model_folder, plain)


CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("said", "style", "trained"),
    [
        # of a chat model whose vocabulary the base model shares
        ("Hi.<|im_end|>", PromptStyle.PLAIN, "Hi.</s>"),
        ("Hi.<|im_end|>", PromptStyle.TAGGED, "Hi.</answer></s>"),
        ("Hi.<|im_end|>", PromptStyle.CHAT, "Hi.</s>"),
        # of other prompt styles
        ("Hi.</answer>", PromptStyle.PLAIN, "Hi.</s>"),
        ("Hi. </answer>", PromptStyle.CHAT, "Hi.</s>"),
        # our own: ended, closed, cut at a stop string
        ("Hi.</s>", PromptStyle.PLAIN, None),
        ("Hi.</s>", PromptStyle.CHAT, None),
        (" Hi.</answer>", PromptStyle.TAGGED, None),
        ("Hi.</s>", PromptStyle.TAGGED, None),  # it forgot to close the answer
        (" Hi.\n</s>", PromptStyle.TAGGED, None),
        ("Hi.\nplayer_1:", PromptStyle.PLAIN, None),
        ("Hi.\nplayer_1:", PromptStyle.TAGGED, None),
        ("Hi.\n", PromptStyle.CHAT, None),
    ],
)
def test_sampled_tokens_are_trained_if_they_end_as_this_model_s_replies_do(
    model_folder: Path, said: str, style: PromptStyle, trained: str | None
) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = CHAT
    ids = tuple(tokenizer.encode(said, add_special_tokens=False))
    [found] = encode_samples([TrainingSample(prompt="q", completion="Hi.", completion_ids=ids)], tokenizer, style, 1000)
    assert tokenizer.decode(found.completion) == (trained or said)


def test_a_reply_may_end_as_the_generation_config_says(model_folder: Path) -> None:
    """Qwen's chat models stop at <|im_end|> and at <|endoftext|>."""
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    ids = tuple(tokenizer.encode("Hi.<|endoftext|>", add_special_tokens=False))
    sample = TrainingSample(prompt="q", completion="Hi.", completion_ids=ids)
    generation = GenerationConfig(eos_token_id=[tokenizer.eos_token_id, ids[-1]])
    for config, end in ((generation, ids[-1]), (None, tokenizer.eos_token_id)):
        assert encode_samples([sample], tokenizer, PromptStyle.PLAIN, 1000, config)[0].completion[-1] == end


@pytest.mark.parametrize("style", [PromptStyle.PLAIN, PromptStyle.TAGGED, PromptStyle.CHAT])
def test_what_was_cut_at_the_token_limit_is_trained_as_sampled(model_folder: Path, style: PromptStyle) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = CHAT
    for said in ("Hi.", "Hi.<|im_end|>"):  # a token like any other for a model that goes on behind it
        ids = tuple(tokenizer.encode(said, add_special_tokens=False))
        cut = TrainingSample(prompt="q", completion="Hi.", completion_ids=ids, truncated=True)
        assert tuple(encode_samples([cut], tokenizer, style, 1000)[0].completion) == ids


def test_an_answer_behind_a_thought_may_stay_open(model_folder: Path) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    ids = tuple(tokenizer.encode("So.</think><answer>Hi.</s>", add_special_tokens=False))
    sample = TrainingSample(prompt="q", completion="Hi.", completion_ids=ids, thinking=True)
    assert tuple(encode_samples([sample], tokenizer, PromptStyle.TAGGED, 1000)[0].completion) == ids


def ord_id(folder: Path, char: str) -> int:
    [only] = load_tokenizer(str(folder))(char, add_special_tokens=False).input_ids
    return int(only)


def test_offline_samples_keep_the_prompt_that_the_engine_cut(model_folder: Path) -> None:
    a, b = (ord_id(model_folder, char) for char in "ab")
    game = episode_of("river", "ab", "The river.")
    said = replace(game.history[0], token_ids=(a, b), finish_reason="length", prompt_ids=(b, b))
    game = replace(game, history=(said, game.history[1]))
    cases = (("play", "sampled", True), ("game", "sampled", False), ("play", "text", False))
    for template, completions, seen in cases:
        settings = RewardSettings(template=template, completions=completions)
        [sample] = assign_rewards([game], settings=settings)
        assert sample.prompt_ids == ((b, b) if seen else None)
        [encoded] = encode(model_folder, sample, max_length=10_000)
        assert (encoded.input_ids.tolist()[: encoded.completion_start] == [b, b]) == seen


def test_samples_that_lose_a_part_of_their_prompt_are_counted_in_a_warning(
    model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fits, long = (TrainingSample(prompt="q" * count, completion="t") for count in (3, 4))
    encode(model_folder, fits, long, long, max_length=6)  # BOS qqq t EOS
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("2 of 3 samples are longer than max_length=6; they lost tokens on the left")
    caplog.clear()
    encode(model_folder, fits, max_length=6)
    assert not caplog.records


def test_tokens_beside_a_hole_in_the_vocabulary_are_known(model_folder: Path) -> None:
    """A tokenizer may have 258 tokens of which the last is 300: engines draw it, so it is trained."""
    tokenizer = load_tokenizer(str(model_folder))
    vocabulary = {**tokenizer.get_vocab(), "<far>": 300}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tokenizer), "get_vocab", lambda self: vocabulary)
        patch.setattr(type(tokenizer), "decode", lambda self, ids, **_: "ab" if ids else "")
        assert len(tokenizer) < 300
        assert len(encode_sampled([online(300)], tokenizer, PromptStyle.PLAIN, ["g/r"])) == 1
        sample = TrainingSample(prompt="q", completion="ab", completion_ids=(300,))
        assert encode_samples([sample], tokenizer, PromptStyle.PLAIN, 100)[0].completion.tolist() == [300]


def test_useless_settings_and_numbers_are_refused(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_length=1.*at least 2"):
        encode(model_folder, TrainingSample(prompt="q", completion="t"), max_length=1)
    with pytest.raises(DataError, match=r"sample 1 \(episode 'e-7'\): reward nan"):
        encode(
            model_folder,
            TrainingSample(prompt="q", completion="t"),
            TrainingSample(prompt="q", completion="t", reward=float("nan"), episode_id="e-7"),
        )


def test_an_unpacked_batch_is_padded_on_the_right_and_picks_the_predicting_positions(model_folder: Path) -> None:
    short, long = encode(
        model_folder,
        TrainingSample(prompt="a", completion="b"),
        TrainingSample(prompt="abc", completion="de", type=SampleType.SFT),
    )
    batch = collate([short, long], packed=False)
    # short: BOS a b EOS (trained: 2, 3); long: BOS a b c d e EOS (trained: 4, 5, 6). So positions 1, 2 and 3, 4, 5
    # predict.
    assert batch["columns"].tolist() == [1, 2, 3, 4, 5]
    a, b, c, d, e = load_tokenizer(str(model_folder))("abcde", add_special_tokens=False).input_ids
    assert batch["input_ids"].tolist() == [[BOS, a, b, 0, 0, 0], [BOS, a, b, c, d, e]]
    assert batch["picks"].tolist() == [0, 1, 7, 8, 9]  # of 2 rows of 5 columns
    assert batch["labels"].tolist() == [b, EOS, d, e, EOS]
    assert batch["sample"].tolist() == [0, 0, 1, 1, 1]
    assert batch["group"].tolist() == [OTHER, SFT]


def test_a_packed_batch_is_one_row_that_shares_beginnings(model_folder: Path) -> None:
    short, long = encode(
        model_folder, TrainingSample(prompt="a", completion="bx"), TrainingSample(prompt="ab", completion="de")
    )
    batch = collate([short, long], packed=True)
    a, b, x, d, e = load_tokenizer(str(model_folder))("abxde", add_special_tokens=False).input_ids
    assert batch["input_ids"].tolist() == [[BOS, a, b, x, d, e]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 3, 4]]
    assert batch["columns"][batch["picks"]].tolist() == [
        1,
        2,
        3,
        2,
        4,
        5,
    ]  # position 2, b, predicts x for one and d for the other
    assert batch["labels"].tolist() == [b, x, EOS, d, e, EOS]


def test_the_filler_weighs_nothing_and_belongs_to_no_group(model_folder: Path) -> None:
    one = encode(model_folder, TrainingSample(prompt="q", completion="t", weight=9.0))
    second = TrainingData(one, micro_batch_size=1, packed=False, rank=1, world_size=2)
    [batch] = second.batches(Update([0], [1.0], Totals(samples=1, sft=0, weight=9.0)))
    assert (batch["weight"].tolist(), batch["group"].tolist()) == ([0.0], [FILLER])
    assert batch["adapter"].tolist() == [sample.group for sample in one]  # computed by an adapter that is trained


def online(*ids: int, **more: object) -> TrainingSample:
    values = {"prompt": "q", "completion": "", "role": "g/r", "completion_ids": ids, "logprobs": (-0.5,) * len(ids)}
    return TrainingSample(**{**values, **more})


def test_online_samples_are_trained_behind_the_prompt_that_the_engine_saw(model_folder: Path) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    cut, whole = online(5, 6, prompt="a long prompt", prompt_ids=(3, 4)), online(7, prompt="q")
    first, second = encode_sampled([cut, whole], tokenizer, PromptStyle.PLAIN, ["g/r"])
    assert first.input_ids.tolist() == [3, 4, 5, 6]  # the engine cut the prompt's beginning
    assert second.input_ids.tolist() == [BOS, ord_id(model_folder, "q"), 7]
    assert (first.completion_start, first.sampling_logprobs, first.group) == (2, (-0.5, -0.5), 2)


def test_online_samples_that_no_engine_made_are_refused(model_folder: Path) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    with pytest.raises(DataError, match="tokens of another tokenizer; online training needs its own games"):
        encode_sampled([online(5), online(6, len(tokenizer))], tokenizer, PromptStyle.PLAIN, ["g/r"])
    with pytest.raises(DataError, match="no log-probabilities; online training needs a local engine"):
        encode_sampled([online(5, logprobs=None)], tokenizer, PromptStyle.PLAIN, ["g/r"])


def test_equal_samples_are_merged_by_advantage_where_ratios_clip() -> None:
    # thrice the same tokens, with advantages 2, 1 and 2
    drawn = (5, 2.0), (5, 1.0), (5, 2.0), (6, -1.0)
    samples = [EncodedSample.of([0, token], 1, reward=reward, weight=0.5) for token, reward in drawn]
    found = [
        [(s.reward, s.weight, s.copies) for s in merge_equal(samples, by_advantage=kept)] for kept in (False, True)
    ]
    assert found == [[(pytest.approx(5 / 3), 1.5, 3), (-1.0, 0.5, 1)], [(2.0, 1.0, 2), (1.0, 0.5, 1), (-1.0, 0.5, 1)]]
    other_role = [*samples[:1], replace(samples[0], group=3), replace(samples[0], completion_start=0)]
    assert len(merge_equal(other_role)) == 3
