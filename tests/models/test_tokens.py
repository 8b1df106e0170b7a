"""Replies as text."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from spag.core.episodes import TrainingSample
from spag.models.samples import encode_samples
from spag.models.tokens import PromptStyle, decode_reply, token_texts

VOCABULARY = ["<s>", "</s>", "▁What", "▁do", "What", ":", "<0xC3>", "<0xA9>", "<0xE5>", "<0xAD>", "<0x97>"]
CHARACTER = ["<0xE5>", "<0xAD>", "<0x97>"]  # 字, which LLaMA 2 has no token for


@pytest.fixture(scope="module")
def llama_like() -> PreTrainedTokenizerFast:
    """A tokenizer that decodes as LLaMA's: the space of the first token goes."""
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(VOCABULARY)}, merges=[]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize(
    ("prompt", "reply", "text"),
    [
        (["<s>", "▁do", ":"], ["▁What", "▁do"], " What do"),
        (["<s>", "▁do", ":"], ["What", "▁do"], "What do"),
        (["<s>"], ["▁What"], "What"),  # nothing before it: as upstream, which decodes prompt and reply together
        (["<s>", ":"], [], ""),
        (
            ["<s>", "<0xC3>"],
            ["<0xA9>", "▁do"],
            "� do",
        ),  # they share a character, so that the prompt's text changes with the reply
        (CHARACTER * 3, [*CHARACTER, "▁do"], "字 do"),  # eight tokens of the prompt begin within a character
        (["<s>", ":"], [*CHARACTER * 3, "<0xE5>"], "字字字�"),  # cut at the token limit
        (["<s>", ":"], [*CHARACTER * 3, "<0xE5>", "<0xAD>"], "字字字��"),
        (["<s>", ":"], ["▁do", "<0xC3>", "<0xC3>"], " do��"),
    ],
)
def test_a_reply_reads_as_behind_its_prompt(
    llama_like: PreTrainedTokenizerFast, prompt: list[str], reply: list[str], text: str
) -> None:
    ids = [[VOCABULARY.index(token) for token in tokens] for tokens in (prompt, reply)]
    assert decode_reply(llama_like, *ids) == text


def test_decoded_alone_it_would_lose_its_space(llama_like: PreTrainedTokenizerFast) -> None:
    assert llama_like.decode([VOCABULARY.index("▁What")]) == "What"


@pytest.mark.parametrize(
    ("reply", "texts"),
    [
        (["▁What", "▁do", ":"], [" What", " do", ":"]),
        (["What", "<0xC3>", "<0xA9>", "▁do"], ["What", "", "é", " do"]),  # the first byte of a character adds nothing
        (["▁do", "<0xC3>", "▁do"], [" do", "", "� do"]),
        (["▁do", "<0xC3>"], [" do", "�"]),
        (CHARACTER * 4, ["", "", "字"] * 4),
        (["<0xC3>"] * 4 + ["▁do"], ["", "", "", "����", " do"]),
    ],
)
def test_each_token_adds_its_part_of_a_reply(
    llama_like: PreTrainedTokenizerFast, reply: list[str], texts: list[str]
) -> None:
    prompt, ids = ([VOCABULARY.index(token) for token in tokens] for tokens in (["<s>", "▁do", ":"], reply))
    assert token_texts(llama_like, prompt, ids) == texts
    assert "".join(texts) == decode_reply(llama_like, prompt, ids)


def test_a_reply_cut_within_a_character_is_trained_as_sampled(llama_like: PreTrainedTokenizerFast) -> None:
    prompt, ids = ([VOCABULARY.index(token) for token in tokens] for tokens in (["<s>", ":"], [*CHARACTER, "<0xE5>"]))
    text = decode_reply(llama_like, prompt, ids)
    asked = {"prompt_ids": tuple(prompt), "completion_ids": tuple(ids), "truncated": True}
    sample = TrainingSample(prompt=":", completion=text, **asked)
    [encoded] = encode_samples([sample], llama_like, PromptStyle.PLAIN, 100)
    assert [*encoded.input_ids] == [*prompt, *ids]
