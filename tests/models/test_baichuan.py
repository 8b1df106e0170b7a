"""Baichuan2-13B: what is refused of a folder as published, its conversion, and the model that loads afterwards.

The published folder is a tiny one made on the spot (``own_code``); its code is the reference for what the converted
model computes.
"""

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor
from transformers import PreTrainedModel, dynamic_module_utils
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from own_code import USER_DEFINED, random_weights, train_tokenizer, write_published
from spag.cli import main
from spag.config.schema import EngineConfig, GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import ConfigError, ModelError, RunError
from spag.core.options import SamplingConfig
from spag.engines.base import Request
from spag.engines.opening import open_model
from spag.engines.transformers.engine import TransformersEngine
from spag.learning.job import TrainingJob
from spag.learning.worker import run_job
from spag.models.baichuan import BaichuanForCausalLM, Distances, alibi_slopes
from spag.models.convert import convert_model
from spag.models.forward import Capabilities, probe_capabilities
from spag.models.loading import load_model, load_tokenizer
from spag.models.spm import fast_tokenizer
from spag.planning.specs import read_shape
from spag.storage.store import write_rows

IDS = torch.tensor([[1, 40, 41, 300, 7, 399, 12, 12, 90, 5], [1, 50, 60, 70, 80, 90, 100, 110, 120, 130]])
TEXTS = ["I know the word! It is `umbrella`!", "百川智能 🙂", f" a  b   c{USER_DEFINED} d \n\n e ", "1234.5", ""]


@pytest.fixture(scope="module", autouse=True)
def copies_of_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the code that transformers copies out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("own") / "published")


@pytest.fixture(scope="module")
def converted(published: Path) -> Path:
    output = published.parent / "converted"
    result = CliRunner().invoke(main, ["import", "model", str(published), "--output", str(output)])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    assert str(output) in result.output
    return output


@pytest.fixture
def model(converted: Path) -> PreTrainedModel:
    return load_model(str(converted), dtype="float32")


@pytest.fixture(scope="module")
def reference(published: Path) -> torch.Tensor:
    """What the published code computes in training mode: logits of ``IDS``, (2, 10, V)."""
    folder = str(published)
    config = get_class_from_dynamic_module("configuration_own.OwnConfig", folder)
    own = get_class_from_dynamic_module("modeling_own.OwnForCausalLM", folder)(config.from_pretrained(folder))
    own.load_state_dict(random_weights())
    with torch.no_grad():
        logits: torch.Tensor = own.train()(IDS).logits
    return logits


def test_the_folder_as_published_is_refused_and_the_way_out_named(published: Path) -> None:
    fix = "convert it once with spag import model FOLDER --output NEW"
    with pytest.raises(ModelError, match=f"the model has its own code; .*{fix}"):
        load_tokenizer(str(published))
    with pytest.raises(ModelError, match=f"own code fails on transformers .*{fix}") as caught:
        load_tokenizer(str(published), trust_remote_code=True)
    assert "\n" not in str(caught.value)
    for trust in (False, True):
        with pytest.raises(ModelError, match=f"no safetensors weights found .*{fix}"):
            load_model(str(published), trust_remote_code=trust)


@pytest.mark.slow
def test_a_head_that_rewrites_itself_is_refused(tmp_path: Path) -> None:
    """Any model with code of its own; only Baichuan2-13B can be converted."""
    folder = write_published(tmp_path / "rewriting", model_type="own_code")
    with pytest.raises(ModelError, match=r"has its own code; review it, then set model\.trust_remote_code=true"):
        load_model(str(folder))
    with pytest.raises(
        ModelError, match=r"no safetensors weights found \(pickled weights are never loaded\); convert it first"
    ):
        load_model(str(folder), trust_remote_code=True)
    save_file(random_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"its own code changes weights in evaluation mode \(lm_head\.weight\)"):
        load_model(str(folder), dtype="float32", trust_remote_code=True)
    with pytest.raises(
        ModelError, match=r"own code fails on transformers .*use the version of transformers it was written for"
    ):
        load_tokenizer(str(folder), trust_remote_code=True)


def test_own_code_that_leaves_weights_alone_loads(tmp_path: Path, reference: torch.Tensor) -> None:
    folder = write_published(tmp_path / "behaved", model_type="own_code")
    code = folder / "modeling_own.py"
    code.write_text(code.read_text().replace("if not self.training:", "if False:"))
    save_file(random_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        logits = load_model(str(folder), dtype="float32", trust_remote_code=True)(IDS).logits
    torch.testing.assert_close(logits, reference)


def test_a_converted_folder_holds_no_code_and_the_published_weights(converted: Path) -> None:
    assert {file.suffix for file in converted.iterdir()} == {".json", ".safetensors"}
    assert "auto_map" not in "".join(file.read_text() for file in converted.glob("*.json"))
    found, expected = load_file(converted / "model.safetensors"), random_weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_it_computes_what_the_published_code_does_in_both_modes(
    model: PreTrainedModel, reference: torch.Tensor, attention: str
) -> None:
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for mode in (model.train(), model.eval()):
            assert (mode(IDS).logits - reference).abs().max() < 1e-5 * reference.abs().max()
    weights = model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in random_weights().items())


def test_it_supports_packed_rows_and_chunked_logits(model: PreTrainedModel) -> None:
    assert probe_capabilities(model, 100) == Capabilities(packed=True, kept=True, chunked=True)


@pytest.mark.slow
def test_the_engine_plays_it_with_its_cache(converted: Path) -> None:
    model, tokenizer = load_model(str(converted), dtype="float32"), load_tokenizer(str(converted))
    prompts = ["the word " * (1 + index) for index in range(3)]
    expected = {}
    for index, prompt in enumerate(prompts):
        ids = [1, *tokenizer.encode(prompt)]
        for _ in range(8):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        expected[f"{index}"] = tuple(ids[-8:])
    engine = TransformersEngine(model, tokenizer, concurrency=2)
    for index, prompt in enumerate(prompts):
        engine.submit(
            Request(f"{index}", prompt, SamplingConfig(temperature=0, max_new_tokens=8, min_new_tokens=0), seed=0)
        )
    done = {}
    while completions := engine.poll():
        done |= {completion.id: completion.token_ids for completion in completions}
    assert done == expected


@pytest.mark.slow
def test_it_trains_and_its_checkpoint_loads(converted: Path, tmp_path: Path) -> None:
    samples = [
        TrainingSample(prompt="the word " * (1 + i % 3), completion=f"It is {i}", reward=1.0, weight=1.0, role="x")
        for i in range(8)
    ]
    options = {"learning_rate": 1e-2, "global_batch_size": 4, "micro_batch_size": 2, "gradient_checkpointing": True}
    write_rows(tmp_path / "made.jsonl", samples)
    job = TrainingJob(
        model=ModelConfig(dtype="float32", device="cpu"),
        phase=PhaseConfig.model_validate({"algorithm": "spag", **options}),
        game=GameConfig(),
        start_from=str(converted),
        output=(output := tmp_path / "trained"),
        seed=3,
        files=[tmp_path / "made.jsonl"],
    )
    run_job(job)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)  # policy and reference agree before the first step
    trained = load_model(str(output / "checkpoint"), dtype="float32")
    assert isinstance(trained, BaichuanForCausalLM)
    assert not torch.equal(trained.lm_head.weight, random_weights()["lm_head.weight"])
    assert load_tokenizer(str(output / "checkpoint")).encode(TEXTS[0]) == load_tokenizer(str(converted)).encode(
        TEXTS[0]
    )


def test_distances_are_exact_in_bfloat16() -> None:
    """Slopes of 40 heads at up to 4,095 positions: with plain bfloat16 numbers a distance of 1 could not be told from
    none.
    """
    scaling, positions = 128**-0.5, torch.tensor([[0, 1, 255, 256, 257, 2048, 4094, 4095]])
    queries, keys = Distances(40, scaling)(torch.empty(0), positions)
    assert torch.equal(keys.bfloat16().float(), keys)
    assert torch.equal(queries.bfloat16().float(), queries)
    scores = queries.double() @ keys.double().transpose(-1, -2) * scaling
    slopes, place = torch.tensor(alibi_slopes(40), dtype=torch.float64), positions[0].double()
    expected = slopes[None, :, None, None] * (place[None, :] - place[:, None])
    torch.testing.assert_close(scores, expected, rtol=2**-16, atol=1e-9)


def test_slopes_of_forty_heads() -> None:
    slopes = alibi_slopes(40)
    assert len(slopes) == 40
    assert (slopes[0], slopes[31]) == (2**-0.25, 2**-8)  # 32 heads: 2^(-8/32), ..., 2^-8
    assert slopes[32:35] == [2**-0.125, 2**-0.375, 2**-0.625]  # every other slope of 64 heads
    assert alibi_slopes(8) == [2**-power for power in range(1, 9)]


def test_the_fast_tokenizer_is_the_published_one(published: Path, converted: Path) -> None:
    tokenizer, model_file = load_tokenizer(str(converted)), published / "tokenizer.model"
    processor = SentencePieceProcessor(model_file=str(model_file))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == processor.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids(USER_DEFINED) in tokenizer.encode(TEXTS[2])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.encode("</s>") == [2]
    assert tokenizer.model_max_length == 512


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram", "user_defined_symbols": []}, "other than BPE"),
        ({"remove_extra_whitespaces": True}, r"splits '  two spaces before.* differently from SentencePiece"),
    ],
)
def test_tokenizers_that_would_differ_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fast_tokenizer(train_tokenizer(tmp_path / "tokenizer.model", **options))


def test_a_dummy_prefix_is_kept(tmp_path: Path) -> None:
    file = train_tokenizer(tmp_path / "tokenizer.model", add_dummy_prefix=True, user_defined_symbols=[])
    tokenizer, processor = fast_tokenizer(file), SentencePieceProcessor(model_file=str(file))
    for text in TEXTS:
        assert tokenizer.encode(text).ids == processor.encode(text)
        assert tokenizer.decode(processor.encode(text)) == text


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran"),))  # type: ignore[return-value]


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_published(tmp_path / "published")
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))):
        save({"lm_head.weight": Malicious()}, folder / "pytorch_model-00002-of-00002.bin")
        with pytest.raises(ModelError, match=r"00002-of-00002\.bin: this pickle contains more than tensors"):
            convert_model(folder, tmp_path / "converted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["published"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; only Baichuan2-13B is converted"),
        ({"hidden_size": 4096, "num_attention_heads": 32}, "7B Baichuan models have rotary positions"),
        ({"vocab_size": 64_000}, "a first-generation Baichuan"),
        (
            {"intermediate_size": 95},
            r"6 of another shape \(model\.layers\.0\.mlp\.\w+\.weight \(\d+, \d+\) for \(\d+, \d+\), \.\.\.\)",
        ),
        (
            {"num_hidden_layers": 3},
            r"7 missing \(model\.layers\.2\.input_layernorm\.weight, \.\.\.\); restore config or weights",
        ),
        ({"num_hidden_layers": 1}, r"its weights are not those of a Baichuan2-13B .* 7 unexpected"),
    ],
)
def test_folders_of_other_models_are_refused(
    published: Path, tmp_path: Path, config: dict[str, object], message: str
) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    for file in published.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(json.loads((published / "config.json").read_text()) | config))
    with pytest.raises(ModelError, match=message):
        convert_model(folder, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def test_broken_and_missing_files_are_named(published: Path, tmp_path: Path) -> None:
    folder = write_published(tmp_path / "published", files=1)
    [weights] = folder.glob("*.bin")
    with pytest.raises(RunError, match="exists, and an import never overwrites"):
        convert_model(folder, published)
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"00001-of-00001\.bin: .*(cannot be read|more than tensors)"):
        convert_model(folder, tmp_path / "new")
    weights.unlink()
    with pytest.raises(ModelError, match="has no weights"):
        convert_model(folder, tmp_path / "new")
    for broken in ({"unk_token": {"lstrip": True}}, {"bos_token": 3}):
        (folder / "tokenizer_config.json").write_text(json.dumps(broken))
        with pytest.raises(ModelError, match=r"its tokenizer is broken: .*; download the folder again"):
            convert_model(folder, tmp_path / "new")
    (folder / "tokenizer.model").write_bytes(b"version https://git-lfs")
    with pytest.raises(ModelError, match=r"tokenizer\.model: is not a SentencePiece model"):
        convert_model(folder, tmp_path / "new")


def test_it_plays_with_transformers_wherever_vllm_is(converted: Path) -> None:
    model = ModelConfig(name=str(converted), dtype="float32")
    with pytest.raises(ConfigError, match=r"engine\.backend=vllm, but .*Baichuan.*set engine\.backend=transformers"):
        open_model(model, EngineConfig(backend="vllm"))
    engine = open_model(model, EngineConfig(concurrency=1))
    assert isinstance(engine, TransformersEngine)
    engine.close()


def test_a_plan_reads_its_shape(converted: Path) -> None:
    assert read_shape(str(converted)).parameters == sum(weight.numel() for weight in random_weights().values())
