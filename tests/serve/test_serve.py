"""The endpoint of ``spag serve``, asked by OpenAI's own client over HTTP, and by clumsy and hostile ones."""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from starlette.testclient import TestClient
from transformers import AutoTokenizer

import forked
from samplings import sampling_with
from spag.cli import main
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError, EngineError
from spag.core.options import SamplingConfig
from spag.core.seeds import derive_seed
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.engines.transformers.engine import TransformersEngine
from spag.engines.vllm.setup import Backend
from spag.models.loading import load_model, load_tokenizer
from spag.models.tokens import PromptStyle
from spag.serve.app import MOST_BYTES, create_app
from spag.serve.models import EndpointModel, open_model
from spag.serve.requests import NEUTRAL
from spag.serve.vllm import vllm_command, vllm_environment
from spag.web.security import Access
from tiny_model import make_model

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('one system message') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def chat_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(model_folder, tmp_path_factory.mktemp("chat") / "model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def model_config(folder: Path, **changes: Any) -> ModelConfig:
    return ModelConfig(name=str(folder), dtype="float32", device="cpu", **changes)


@pytest.fixture(scope="module")
def http(model_folder: Path, chat_folder: Path) -> Iterator[TestClient]:
    """A served base model, read as plain text, and one that takes conversations."""
    engine = EngineConfig(concurrency=4, max_length=400)
    base = open_model("base", model_config(model_folder), engine)
    after = open_model("after", model_config(chat_folder, prompt_style="chat"), engine)
    with TestClient(create_app([base, after], Access()), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0)


@pytest.fixture(scope="module")
def direct(model_folder: Path) -> Callable[..., Any]:
    """The engine asked without a server."""

    def generate(
        prompt: str, seed: int, style: PromptStyle = PromptStyle.PLAIN, stop: tuple[str, ...] = (), **sampling: Any
    ) -> Any:
        model = load_model(str(model_folder), dtype="float32", device="cpu")
        engine = TransformersEngine(model, load_tokenizer(str(model_folder)), style=style, concurrency=1)
        defaults = {"temperature": 1.0, "min_new_tokens": 0}
        engine.submit(Request("x", prompt, sampling_with(**{**defaults, **sampling}), derive_seed(seed, "0"), stop))
        [done] = engine.poll()
        return done

    return generate


def test_models_are_listed_by_their_names(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["base", "after"]
    assert client.models.retrieve("after").owned_by == "spag"
    with pytest.raises(openai.NotFoundError, match="there is no 'nobody'"):
        client.models.retrieve("nobody")


def test_a_model_is_listed_with_the_length_that_its_engine_takes(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 8.0}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors, "original_max_position_embeddings": 32}
    folder = make_model(tmp_path, max_position_embeddings=256, rope_parameters=rope)
    model = open_model("short", model_config(folder), EngineConfig())
    with TestClient(create_app([model], Access()), base_url="http://localhost") as client:
        [listed] = client.get("/v1/models").json()["data"]
        assert listed["max_model_len"] == 32
        asked = {"model": "short", "prompt": "x" * 23}  # with BOS and 8 or 9 new tokens, 32 or 33
        assert client.post("/v1/completions", json={**asked, "max_tokens": 8}).status_code == 200
        refused = client.post("/v1/completions", json={**asked, "max_tokens": 9}).json()["error"]["message"]
    assert refused.endswith("are more than the 32 that short is served with")


def test_a_completion_is_what_the_engine_says(client: openai.OpenAI, direct: Callable[..., Any]) -> None:
    answer = client.completions.create(
        model="base", prompt="Say something", seed=7, max_tokens=12, temperature=0.8, top_p=0.9, logprobs=0
    )
    expected = direct("Say something", 7, max_new_tokens=12, temperature=0.8, top_p=0.9)
    [choice] = answer.choices
    assert choice.text == expected.text
    assert choice.finish_reason == ("length" if expected.finish_reason == "length" else "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens == 14  # BOS and 13 bytes, a token each
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert choice.logprobs.token_logprobs == pytest.approx(
        list(expected.logprobs)[: len(choice.logprobs.tokens)], abs=1e-4
    )


def test_bytes_of_a_broken_character_are_left_out(http: TestClient) -> None:
    body = {"model": "after", "messages": CHAT["messages"], "seed": 5, "max_tokens": 40, "logprobs": True}
    [choice] = http.post("/v1/chat/completions", json=body).json()["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == choice["message"]["content"]
    assert any("\ufffd" in one["token"] for one in tokens)  # a random model writes bytes in any order
    for one in tokens:
        assert one["bytes"] == (None if "\ufffd" in one["token"] else list(one["token"].encode()))


def test_choices_differ_and_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def texts(**asked: Any) -> list[str]:
        answer = client.completions.create(model="base", prompt=["One", "Two"], max_tokens=8, **asked)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    first = texts(n=2, seed=3)
    assert len(set(first)) == 4
    assert texts(n=2, seed=3) == first
    assert texts(seed=3, temperature=0) == texts(seed=4, temperature=0)
    assert texts(n=2) != texts(n=2)


def test_a_stop_string_ends_a_text(client: openai.OpenAI, direct: Callable[..., Any]) -> None:
    whole = direct("Go", 1, max_new_tokens=30).text
    cut = whole[5:7]
    answer = client.completions.create(model="base", prompt="Go", seed=1, max_tokens=30, stop=[cut, "not there"])
    assert answer.choices[0].text == whole[: whole.index(cut)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_conversation_is_read_by_the_models_template(
    client: openai.OpenAI, direct: Callable[..., Any], chat_folder: Path
) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    answer = client.chat.completions.create(
        model="after", messages=messages, seed=5, max_completion_tokens=10, logprobs=True
    )
    text = "<system>Be brief.</s><user>Hello</s><assistant>"
    model = load_model(str(chat_folder), dtype="float32", device="cpu")
    engine = TransformersEngine(model, load_tokenizer(str(chat_folder)), style=PromptStyle.RENDERED, concurrency=1)
    sampling = SamplingConfig(temperature=1.0, max_new_tokens=10, min_new_tokens=0)
    engine.submit(Request("x", text, sampling, derive_seed(5, "0")))
    [expected] = engine.poll()
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert (
        answer.usage is not None and answer.usage.prompt_tokens == len("<system>Be brief.<user>Hello<assistant>") + 2
    )  # and two </s>
    assert choice.logprobs is not None and choice.logprobs.content is not None
    described = [one.logprob for one in choice.logprobs.content]
    assert expected.logprobs is not None and described == pytest.approx(
        list(expected.logprobs)[: len(described)], abs=1e-4
    )


def test_a_plain_model_takes_one_message_as_its_prompt(client: openai.OpenAI, direct: Callable[..., Any]) -> None:
    answer = client.chat.completions.create(
        model="base", messages=[{"role": "user", "content": "Hello"}], seed=5, max_tokens=10
    )
    assert answer.choices[0].message.content == direct("Hello", 5, max_new_tokens=10).text


THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.mark.parametrize("opened", [True, False])
def test_a_thought_that_is_asked_for_comes_apart(chat_folder: Path, opened: bool) -> None:
    tokenizer = load_tokenizer(str(chat_folder))
    mark = "<think>\n"
    if opened:
        tokenizer.chat_template = TEMPLATE.replace("<assistant>", "<assistant>{{ '<think>\n' if enable_thinking }}")
    replies = {8: "It is</think>\n\nA river.", 3: "It"}

    def reply(request: Request) -> str:
        thinks = "<think>" in request.prompt
        assert request.prompt.endswith("<user>Hi</s><assistant>" + (mark if thinks else "")) and request.stop == ()
        said = replies[request.sampling.max_new_tokens]
        return said if thinks or not opened else said.rpartition("</think>")[2]

    if not opened:
        replies = {tokens: mark + said for tokens, said in replies.items()}
    model = EndpointModel("after", PromptStyle.RENDERED, tokenizer, 400, lambda: ScriptedEngine(reply))
    with TestClient(create_app([model], Access()), base_url="http://localhost") as http:

        def message(**more: Any) -> dict[str, Any]:
            body = {**CHAT, "max_tokens": 8, **more}
            answer: dict[str, Any] = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
            return answer

        told = message(**THINKING)
        assert told == {"role": "assistant", "content": "\n\nA river.", "reasoning_content": "It is"}
        cut = message(**THINKING, max_tokens=3)
        assert cut == {"role": "assistant", "content": None, "reasoning_content": "It"}
        plain = replies[8].rpartition("</think>")[2] if opened else replies[8]
        assert message() == {"role": "assistant", "content": plain}  # as ever
        empty = {"refusal": None, "tool_calls": []}
        for reply_sent in (told, cut, told | empty):  # a client sends replies back as they came
            talk = [*CHAT["messages"], reply_sent, {"role": "user", "content": "Hi"}]
            assert message(messages=talk) == {"role": "assistant", "content": plain}


def test_streams_hold_the_whole_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "after",
        "messages": [{"role": "user", "content": "Hello"}],
        "seed": 5,
        "max_tokens": 10,
        "n": 2,
    }
    whole = client.chat.completions.create(**asked)
    said, reasons = ["", ""], ["", ""]
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason or ""
    assert said == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert chunks[-1].usage == whole.usage
    texts = [
        chunk.choices[0].text for chunk in client.completions.create(model="base", prompt="Go", seed=1, stream=True)
    ]
    assert "".join(texts) == client.completions.create(model="base", prompt="Go", seed=1).choices[0].text


CHAT: dict[str, Any] = {"model": "after", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "base", "prompt": "Hi"}


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({**TEXT, "model": "nobody"}, 404, "model: there is no 'nobody'; there are: base, after"),
        ({**TEXT, "temperature": 3}, 400, "temperature: input should be less than or equal to 2"),
        ({**TEXT, "temperature": 1e-5}, 400, "temperature: input should be 0 (greedy) or from 0.01 to 2"),
        ({**TEXT, "temperature": float("nan")}, 400, "the request: not JSON"),
        ({**TEXT, "top_p": "much"}, 400, "top_p: input should be a valid number"),
        ({**TEXT, "n": 17}, 400, "n: input should be less than or equal to 16"),
        ({**TEXT, "prompt": ["a"] * 9, "n": 2}, 400, "n: 2 x 9 prompts are more than 16 texts"),
        ({**TEXT, "max_tokens": 0}, 400, "max_tokens: input should be greater than or equal to 1"),
        (
            {**TEXT, "max_tokens": 10**9},
            400,
            "max_tokens: 1,000,000,000 and a prompt of 3 tokens are more than the 400",
        ),
        ({**TEXT, "prompt": "x" * 500}, 400, "max_tokens: 16 and a prompt of 501 tokens are more than the 400"),
        ({**TEXT, "prompt": [1, 2, 3]}, 400, "prompt.0: input should be a valid string"),
        ({**TEXT, "prompt": 5}, 400, "prompt: input should be a valid list"),
        (
            {**CHAT, "messages": [{"role": "user", "content": 5}]},
            400,
            "messages.0.content: input should be a valid list",
        ),
        ({**TEXT, "logprobs": 5}, 400, "logprobs: is not supported here"),
        ({**TEXT, "echo": True}, 400, "echo: is not supported here"),
        ({**TEXT, "presence_penalty": 0.5}, 400, "presence_penalty: is not supported here"),
        ({**TEXT, "logit_bias": {"1": 5}}, 400, "logit_bias: "),
        ({**TEXT, "seed": 2**63}, 400, "seed: "),
        ({**TEXT, "stop": ["a"] * 5}, 400, "stop: list should have at most 4 items"),
        ({**TEXT, "stop": ""}, 400, "stop.0: string should have at least 1 character"),
        ({**TEXT, "stop": ["a", ""]}, 400, "stop.1: string should have at least 1 character"),
        ({**TEXT, "guided_json": {}}, 400, "guided_json: is not supported here"),
        ({**CHAT, "messages": []}, 400, "messages: "),
        ({**CHAT, "messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role: is not supported here"),
        (
            {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages.0.content.0.type: is not supported here",
        ),
        (
            {**CHAT, "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
            400,
            "one system message",
        ),
        ({**CHAT, "model": "base", "messages": CHAT["messages"] * 2}, 400, "base is served with prompt_style plain"),
        ({**CHAT, "model": "base", **THINKING}, 400, "prompt_style plain, which has no thoughts"),
        ({**CHAT, "chat_template_kwargs": {"custom": 1}}, 400, "chat_template_kwargs.custom: is not supported here"),
        ({**TEXT, **THINKING}, 400, "chat_template_kwargs: is not supported here"),
        ({**TEXT, "model": "after"}, 400, "after is served with prompt_style chat"),
        ({**CHAT, "tools": [{"type": "function"}]}, 400, "tools: "),
        ({**CHAT, "tool_choice": "required"}, 400, "tool_choice: is not supported here"),
        ({**CHAT, "response_format": {"type": "json_object"}}, 400, "response_format: is not supported here"),
        ({**CHAT, "top_logprobs": 3}, 400, "top_logprobs: is not supported here"),
        ({}, 400, "model: field required"),
        ([1], 400, "the request: "),
        ("text", 400, "the request: "),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(http: TestClient, asked: Any, status: int, says: str) -> None:
    path = "chat/completions" if isinstance(asked, dict) and "messages" in asked else "completions"
    answer = http.post(f"/v1/{path}", content=json.dumps(asked))
    message = answer.json()["error"]["message"]
    assert (answer.status_code, "\n" in message) == (status, False)
    assert says in message
    assert answer.json()["error"]["code"] == ("context_length_exceeded" if "are more than the 400" in says else None)


def test_fields_that_change_nothing_may_be_sent(http: TestClient) -> None:
    same = {"seed": 1, "temperature": 0, "max_tokens": 4}
    for path, asked in (("completions", TEXT), ("chat/completions", CHAT)):
        sent = {**asked, **same, **NEUTRAL, "user": "me", "metadata": {"a": "b"}, "logprobs": None, "extra": None}
        plain, full = (http.post(f"/v1/{path}", json=body).json() for body in ({**asked, **same}, sent))
        assert plain["choices"] == full["choices"]
    for choice in ("auto", "none"):
        body = {**CHAT, **same, "tool_choice": choice}
        assert http.post("/v1/chat/completions", json=body).json()["choices"] == plain["choices"]


BODIES = [
    b"",
    b"\xff\xfe{\x00",
    b"[" * 50_000,
    b'{"model":' + b"1" * 5000 + b"}",
    b'{"model": "base", "prompt": "\\ud800"}',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_no_request_is_refused(http: TestClient, body: bytes) -> None:
    answer = http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert len(answer.json()["error"]["message"].splitlines()) == 1


def test_bounds_hold_before_anything_is_read(http: TestClient) -> None:
    assert http.post("/v1/completions", content=b" " * (MOST_BYTES + 1)).status_code == 413
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 421
    assert http.get("/v1/models", headers={"origin": "http://evil.example"}).status_code == 403
    assert http.get("/nothing").status_code == 404
    assert http.get("/v1/completions").status_code == 405


def scripted(reply: Callable[[Request], str], model_folder: Path) -> EndpointModel:
    tokenizer = load_tokenizer(str(model_folder))
    return EndpointModel("one", PromptStyle.PLAIN, tokenizer, 400, lambda: ScriptedEngine(reply))


def test_a_token_is_asked_for_on_any_other_address(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="a token is required"):
        Access("0.0.0.0")
    app = create_app([scripted(lambda request: "Hello", model_folder)], Access("0.0.0.0", TOKEN))
    with TestClient(app, base_url="http://10.0.0.1") as http:
        assert http.get("/v1/models").status_code == 401
        good = openai.OpenAI(api_key=TOKEN, base_url="http://10.0.0.1/v1", http_client=http)
        assert good.completions.create(model="one", prompt="Hi").choices[0].text == "Hello"


def test_a_model_that_fails_says_so_and_is_reopened(model_folder: Path) -> None:
    left = [EngineError("out of memory with 1 utterance in flight; lower engine.concurrency")]

    def reply(request: Request) -> str:
        if left:
            raise left.pop()
        return "Hello"

    with TestClient(create_app([scripted(reply, model_folder)], Access()), base_url="http://localhost") as http:
        failed = http.post("/v1/completions", json={"model": "one", "prompt": "Hi"})
        assert (failed.status_code, failed.json()["error"]["message"][:13]) == (503, "out of memory")
        assert (
            http.post("/v1/completions", json={"model": "one", "prompt": "Hi"}).json()["choices"][0]["text"] == "Hello"
        )


def test_texts_of_cancelled_requests_are_counted_until_they_end(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spag.serve.app.MOST_WAITING", 2)
    go_on = threading.Event()
    model = scripted(lambda request: str(go_on.wait(600)), model_folder)
    app = create_app([model], Access())
    body = {"model": "one", "prompt": "Hi", "n": 2}

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/v1/completions", json=body)

    async def scenario() -> list[int]:
        cancelled = asyncio.create_task(ask())
        while not model.unfinished:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        busy = (await ask()).status_code
        go_on.set()
        while model.unfinished:
            await asyncio.sleep(0.01)
        return [busy, (await ask()).status_code]

    assert asyncio.run(scenario()) == [429, 200]
    model.close()


def test_vllm_serves_one_base_model_and_its_adapters(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted = get_peft_model(
        load_model(str(model_folder), dtype="float32", device="cpu"), LoraConfig(r=4, target_modules=["q_proj"])
    )
    adapted.save_pretrained(tmp_path / "adapter")
    base, after = model_config(model_folder), model_config(tmp_path / "adapter")
    command = vllm_command([("base", base), ("after", after)], EngineConfig(max_length=512), "127.0.0.1", 8000)
    assert command[:4] == ["vllm", "serve", str(model_folder), "--served-model-name"] and command[4] == "base"
    text = " ".join(command)
    for piece in (
        "--host 127.0.0.1 --port 8000",
        "--max-model-len 512",
        "--enable-lora --max-lora-rank 8 --max-loras 1",
        "--max-num-seqs 32 --max-num-batched-tokens 8192",
    ):
        assert piece in text
    assert command[-2] == "--lora-modules"
    assert json.loads(command[-1]) == {"name": "after", "path": str(tmp_path / "adapter")}
    longest = vllm_command([("base", base)], EngineConfig(max_length=100_000), "127.0.0.1", 8000)
    assert longest[longest.index("--max-model-len") + 1] == "4096"  # the model's positions
    monkeypatch.setenv("HOME", str(model_folder.parent))
    (tmp_path / "link").symlink_to(model_folder)
    for spelling in (Path("~") / model_folder.name, tmp_path / "link"):
        models = [("base", model_config(spelling)), ("after", after)]
        assert vllm_command(models, EngineConfig(max_length=512), "127.0.0.1", 8000) == command
    with pytest.raises(ConfigError, match="one base model"):
        vllm_command([("base", base), ("other", ModelConfig(name="x/y"))], EngineConfig(), "127.0.0.1", 8000)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lr=1e-5", "a,b", 'r=8, "b"', "bad\udcff"])
def test_vllm_finds_an_adapter_in_any_folder(model_folder: Path, tmp_path: Path, place: str) -> None:
    launcher = pytest.importorskip("vllm.entrypoints.launchers.cli_args")
    folder = tmp_path / place
    folder.mkdir()
    LoraConfig(r=4, base_model_name_or_path=str(model_folder)).save_pretrained(folder)
    (folder / "adapter_model.safetensors").touch()
    command = vllm_command([("a=b", model_config(folder))], EngineConfig(max_length=512), "127.0.0.1", 8000)
    parser = argparse.ArgumentParser()
    parser.add_argument("--lora-modules", nargs="+", action=launcher.LoRAParserAction)
    [found] = parser.parse_args(command[-2:]).lora_modules
    assert (found.name, found.path) == ("a=b", str(folder))


@pytest.mark.parametrize(("device", "gpus"), [(None, None), ("cuda", None), ("cuda:0", "5"), ("cuda:1", "7,8")])
def test_vllms_server_runs_on_the_device_asked_for(
    device: str | None, gpus: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,8,9")
    engine = EngineConfig(tensor_parallel=1 if gpus == "5" else 2)
    found = vllm_environment(ModelConfig(device=device), engine, None)
    assert found.get("CUDA_VISIBLE_DEVICES") == gpus


def test_on_a_gpu_vllms_server_takes_over(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr("os.execvpe", lambda *arguments: started.append(arguments) or sys.exit(0))
    monkeypatch.setattr("spag.engines.opening.backend_of", lambda *_: Backend.VLLM)
    command = ["serve", f"tiny={model_folder}", "--set", "model.device=cpu", "--host", "0.0.0.0"]
    for is_cpu_build, status in ((False, 0), (True, 2)):
        monkeypatch.setattr("spag.engines.vllm.setup.installed_vllm", lambda: ("0.32", is_cpu_build))  # noqa: B023
        answer = CliRunner().invoke(main, command, env={"SPAG_WEB_TOKEN": TOKEN})
        assert answer.exit_code == status
    assert "spag serve can start vLLM only on GPUs" in answer.stderr
    [(_, words, environment)] = started
    assert words[:2] == ["vllm", "serve"] and environment["VLLM_API_KEY"] == TOKEN and TOKEN not in " ".join(words)
    assert words[words.index("--middleware") + 1] == "spag.serve.guard.TokenGuard"


def test_a_served_model_takes_no_tags(model_folder: Path) -> None:
    answer = CliRunner().invoke(main, ["serve", f"tiny={model_folder}", "--set", "model.prompt_style=tagged"])
    assert answer.exit_code == 2
    assert "model.prompt_style=tagged: cannot be served; set it to plain or chat" in answer.stderr


@pytest.mark.slow
def test_the_command_serves_and_stops(model_folder: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    options = ["--port", "0", "--set", "model.dtype=float32", "--set", "engine.max_length=100"]
    process = forked.start(
        forked.printing, str(printed), forked.run_in, str(tmp_path), "serve", f"tiny={model_folder}", *options
    )
    while not (found := re.search(r"^(http\S+).*\n", printed.read_text() if printed.exists() else "", re.MULTILINE)):
        assert process.is_alive(), printed.read_text()
        time.sleep(0.02)
    asked = {"model": "tiny", "prompt": "Hi", "max_tokens": 3}
    answer = httpx2.post(f"{found[1]}/completions", json=asked, trust_env=False, timeout=300).json()
    assert answer["usage"]["completion_tokens"] <= 3
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert forked.end(process, 120) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bot:random"], "bot:random: only local models can be served"),
        (["openai:gpt"], "openai:gpt: only local models can be served"),
        (["./nothing-here"], "no such file or folder"),
        (["a=x", "a=y"], "two models are called a; give them different names as NAME=MODEL"),
        (["x", "--host", "0.0.0.0"], "a token is required beyond loopback"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(arguments: list[str], says: str) -> None:
    options = ["--set", "engine.backend=transformers", "--set", "model.device=cpu"]
    answer = CliRunner().invoke(main, ["serve", *arguments, *options], env={"SPAG_WEB_TOKEN": ""})
    assert (answer.exit_code, says in answer.stderr) == (2, True), answer.stderr


def test_a_chat_without_a_limit_may_have_what_room_is_left(http: TestClient) -> None:
    """Its default of 256 tokens does not fit beside a prompt of 318."""
    asked = {**CHAT, "messages": [{"role": "user", "content": "x" * 300}], "seed": 1, "min_tokens": 256}
    for path, more, status in (("after", {}, 200), ("base", {}, 200), ("after", {"max_tokens": 256}, 400)):
        answer = http.post("/v1/chat/completions", json={**asked, "model": path, **more})
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["usage"]["total_tokens"] == 400
    asked = {**CHAT, "messages": [{"role": "user", "content": "x" * 400}]}
    answer = http.post("/v1/chat/completions", json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_the_largest_top_k_switches_nothing_off(http: TestClient) -> None:
    """It is more than our settings take."""
    whole, all_tokens = (http.post("/v1/completions", json={**TEXT, "seed": 1, "top_k": k}) for k in (0, 2**31))
    assert all_tokens.status_code == 200 and all_tokens.json()["choices"] == whole.json()["choices"]


def test_both_names_of_the_limit_and_no_log_probabilities_may_be_asked_for(http: TestClient) -> None:
    answer = http.post("/v1/chat/completions", json={**CHAT, "max_completion_tokens": 3, "max_tokens": 9})
    assert answer.json()["usage"]["completion_tokens"] <= 3
    answer = http.post("/v1/completions", json={**TEXT, "logprobs": False, "max_tokens": 2})
    assert answer.json()["choices"][0]["logprobs"] is None
