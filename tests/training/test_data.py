"""Tokens, masks and batches."""

from pathlib import Path

import pytest
import torch
from tiny import make_samples

from spag.engines.base import PromptStyle
from spag.episodes import SampleType, TrainingSample
from spag.errors import ConfigError, DataError
from spag.game.base import Role
from spag.models import load_model, load_tokenizer
from spag.training.data import FILLER, Group, TrainingSet, collate, encode_samples
from spag.training.losses import mean_logprob
from spag.training.policy import takes_logits_to_keep, target_logprobs

BOS, EOS = 0, 1


def encode(folder: Path, *samples: TrainingSample, max_length: int = 100):
    return encode_samples(samples, load_tokenizer(str(folder)), PromptStyle.PLAIN, max_length)


def test_tokens_are_bos_query_target_eos_and_only_target_and_eos_are_trained(model_folder: Path) -> None:
    (sample,) = encode(model_folder, TrainingSample(query="ab", target="cd", role=Role.DEFENDER, reward=2.0, weight=3.0))
    tokenizer = load_tokenizer(str(model_folder))
    ids = sample.input_ids.tolist()
    assert ids == [BOS, *tokenizer("abcd", add_special_tokens=False).input_ids, EOS]
    assert sample.loss_mask.tolist() == [False, False, False, True, True, True]
    assert (sample.reward, sample.weight, sample.group) == (2.0, 3.0, Group.DEFENDER)


def test_chat_style_ends_the_target_with_the_template_s_own_end_token(model_folder: Path) -> None:
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (sample,) = encode_samples([TrainingSample(query="q", target="t")], tokenizer, PromptStyle.CHAT, 100)
    assert tokenizer.decode(sample.input_ids) == "[user]q<end>[assistant]t<end>"
    assert tokenizer.decode(sample.input_ids[sample.loss_mask]) == "t<end>"


@pytest.mark.parametrize(
    ("max_length", "text", "trained"),
    [(100, "<s>qqqqabc</s>", "abc</s>"), (6, "qqabc</s>", "abc</s>"), (4, "abc</s>", "bc</s>"), (2, "c</s>", "</s>")],
)
def test_too_long_samples_lose_tokens_on_the_left(model_folder: Path, max_length: int, text: str, trained: str) -> None:
    (sample,) = encode(model_folder, TrainingSample(query="qqqq", target="abc"), max_length=max_length)
    tokenizer = load_tokenizer(str(model_folder))
    assert tokenizer.decode(sample.input_ids) == text
    assert tokenizer.decode(sample.input_ids[sample.loss_mask]) == trained


def test_an_empty_target_still_trains_the_end_token(model_folder: Path) -> None:
    (sample,) = encode(model_folder, TrainingSample(query="q", target=""))
    assert sample.input_ids[sample.loss_mask].tolist() == [EOS]


def test_useless_settings_and_numbers_are_refused(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_length=1.*at least 2"):
        encode(model_folder, TrainingSample(query="q", target="t"), max_length=1)
    with pytest.raises(DataError, match=r"sample 1 \(episode 'e-7'\): reward nan"):
        encode(
            model_folder,
            TrainingSample(query="q", target="t"),
            TrainingSample(query="q", target="t", reward=float("nan"), episode_id="e-7"),
        )


def test_a_batch_is_padded_on_the_right_and_labels_stand_at_the_predicting_positions(model_folder: Path) -> None:
    short, long = encode(model_folder, TrainingSample(query="a", target="b"), TrainingSample(query="abc", target="de", type=SampleType.SFT))
    batch = collate([(short, -1.5), (long, 0.0)])
    # short: BOS a b EOS (trained: 2, 3); long: BOS a b c d e EOS (trained: 4, 5, 6). So positions 1, 2 and 3, 4, 5 predict.
    assert batch["positions"].tolist() == [1, 2, 3, 4, 5]
    a, b, c, d, e = load_tokenizer(str(model_folder))("abcde", add_special_tokens=False).input_ids
    assert batch["input_ids"].tolist() == [[BOS, a, b, EOS, 0, 0, 0], [BOS, a, b, c, d, e, EOS]]
    assert batch["labels"].tolist() == [[b, EOS, -100, -100, -100], [-100, -100, d, e, EOS]]
    assert batch["ref_logprob"].tolist() == [-1.5, 0.0]
    assert batch["group"].tolist() == [Group.OTHER, Group.SFT]


def test_the_filler_weighs_nothing_and_belongs_to_no_group(model_folder: Path) -> None:
    sample, reference = TrainingSet(encode(model_folder, TrainingSample(query="q", target="t", weight=9.0)))[FILLER]
    assert (sample.weight, sample.group, reference) == (0.0, FILLER, 0.0)


@pytest.mark.parametrize("logits_to_keep", [True, False])
def test_target_logprobs_are_those_of_each_sample_alone_with_all_logits(model_folder: Path, logits_to_keep: bool) -> None:
    samples = encode(model_folder, *make_samples(12))
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    assert takes_logits_to_keep(model)
    with torch.no_grad():
        together = target_logprobs(model, collate([(sample, 0.0) for sample in samples]), logits_to_keep=logits_to_keep)
        for sample, value in zip(samples, together.tolist(), strict=True):
            ids = sample.input_ids.long().unsqueeze(0)
            labels = ids.masked_fill(~sample.loss_mask, -100)
            alone = mean_logprob(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits, labels)
            assert value == pytest.approx(alone.item(), abs=1e-5)
    assert together.std() > 0.1
