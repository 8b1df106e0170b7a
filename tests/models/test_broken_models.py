"""Models with broken files, weights that do not fit, and numbers that are none: each is one line that says what to
do.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2 import TemplateError
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.algorithms.settings import LoraConfig as LoraSettings
from spag.algorithms.settings import UpdateSettings
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, EngineError, ModelError, first_line
from spag.core.options import SamplingConfig
from spag.engines.base import Request
from spag.engines.transformers.engine import TransformersEngine
from spag.learning.devices import make_accelerator
from spag.learning.start import trainable
from spag.models.finding import adapter_base, model_type, read_adapter, resolve_model
from spag.models.loading import checked_device, load_model, load_tokenizer, save_model
from spag.models.refusals import library_errors
from spag.models.tokens import PromptStyle
from spag.planning.specs import read_shape
from tiny_model import make_model

Break = Callable[[Path], object]
UP = "model.layers.0.mlp.up_proj.weight"
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("whole") / "model")
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def field(name: str, value: Any, file: str = "config.json") -> Break:
    return lambda folder: (folder / file).write_text(
        json.dumps({**json.loads((folder / file).read_text()), name: value})
    )


def text(content: str, file: str = "config.json") -> Break:
    return lambda folder: (folder / file).write_text(content)


def weights(change: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors") -> Break:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / file)
        change(tensors)
        save_file(tensors, folder / file, metadata={"format": "pt"})

    return apply


def cut(size: int, file: str = "model.safetensors") -> Break:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size])


def index(content: str) -> Break:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(content)

    return apply


def fill(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[UP][3, 5].fill_(value)


def one_line(error: pytest.ExceptionInfo[Exception]) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) < 500


BROKEN_MODELS: dict[str, tuple[Break, str]] = {
    "no JSON": (text("{"), "not a valid JSON|cannot be loaded"),
    "empty": (text(""), "cannot be loaded"),
    "a list": (text("[]"), "cannot be loaded"),
    "nested": (text("[" * 100_000), "cannot be loaded"),
    "no type": (text("{}"), "Should have a `model_type`"),
    "type of no model": (field("model_type", "x"), "`x`"),
    "type is a list": (field("model_type", []), "cannot be loaded"),
    "another type": (
        field("model_type", "qwen3"),
        r"not those of a qwen3 as its config says: 4 missing \(model.layers.0.self_attn.k_norm",
    ),
    "negative": (field("intermediate_size", -1), "negative dimension"),
    "no heads": (field("num_attention_heads", 0), "cannot be loaded"),
    "text for a number": (field("hidden_size", "x"), "Field 'hidden_size' expected int"),
    "fraction of a layer": (field("num_hidden_layers", 1.5), "Field 'num_hidden_layers' expected int"),
    "no layer": (field("num_hidden_layers", 0), "18 unexpected"),
    "more layers": (field("num_hidden_layers", 3), "9 missing"),
    "billions of layers": (
        field("num_hidden_layers", 2**31),
        r"asks for 2147483648 layers, but its weights are 21 tensors",
    ),
    "a huge vocabulary": (field("vocab_size", 2**31), r"asks for 137,438,9[0-9]{2},[0-9]{3} parameters"),
    "a smaller vocabulary": (
        field("vocab_size", 200),
        r"2 of another shape \(lm_head.weight \(258, 32\) for \(200, 32\), ...\)",
    ),
    "bad dtype": (field("dtype", "x"), "has no attribute 'x'"),
    "bad rope": (field("rope_parameters", 3), "rope_parameters"),
    "bad quantization": (field("quantization_config", [1]), "cannot be loaded"),
    "a folder for a config": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        "cannot be loaded",
    ),
    "empty weights": (cut(0), "truncated or not a safetensors file .*download it again"),
    "half a header": (cut(100), "truncated"),
    "half the weights": (cut(70_000), "truncated"),
    "a pointer": (
        text("version https://git-lfs.github.com/spec/v1\n", "model.safetensors"),
        "truncated or not a safetensors",
    ),
    "a weight less": (weights(lambda tensors: tensors.pop(UP)), rf"1 missing \({UP}\)"),
    "a weight more": (weights(lambda tensors: tensors.update(more=torch.ones(1))), r"1 unexpected \(more\)"),
    "another shape": (
        weights(lambda tensors: tensors.update({UP: torch.ones(2, 2)})),
        rf"{UP} \(2, 2\) for \(64, 32\)",
    ),
    "no number": (weights(fill(float("nan"))), f"{UP} contains numbers that are not finite"),
    "infinity": (weights(fill(float("-inf"))), "not finite"),
    "an empty index": (index("{}"), "'weight_map'"),
    "an index of nothing": (index('{"metadata": {}, "weight_map": {}}'), "cannot be loaded"),
    "an index of numbers": (index('{"metadata": {}, "weight_map": {"x": 3}}'), "cannot be loaded"),
    "an index of what is not there": (
        index('{"metadata": {}, "weight_map": {"x": "none.safetensors"}}'),
        "none.safetensors",
    ),
    "no generation config": (
        text("{", "generation_config.json"),
        r"generation_config.json:1: not JSON.*restore the file",
    ),
    "an end that is text": (
        field("eos_token_id", "x", "generation_config.json"),
        r"generation_config.json: .*eos_token_id",
    ),
}


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_broken_models_are_refused_in_one_line(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, message = BROKEN_MODELS[name]
    change(folder)
    with pytest.raises(ModelError, match=message) as error:
        load_model(str(folder), dtype="float32", device="cpu")
    assert str(folder) in str(error.value) and one_line(error)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "change", [field("num_attention_heads", 0), field("hidden_size", "x"), text("[]"), text("[" * 100_000)]
)
def test_plans_of_broken_configs_are_refused_in_one_line(change: Break, folder: Path) -> None:
    change(folder)
    with pytest.raises(ModelError, match="its config cannot be read") as error:
        read_shape(str(folder))
    assert one_line(error)


BROKEN_TOKENIZERS: dict[str, Break] = {
    "no JSON": text("{", "tokenizer.json"),
    "nothing": text("{}", "tokenizer.json"),
    "a list": text("[]", "tokenizer.json"),
    "nested": text("[" * 100_000, "tokenizer.json"),
    "bad model": field("model", 3, "tokenizer.json"),
    "bad added tokens": field("added_tokens", "x", "tokenizer.json"),
    "bad decoder": field("decoder", {"type": "x"}, "tokenizer.json"),
    "bad length": field("model_max_length", "x", "tokenizer_config.json"),
    "bad token": field("bos_token", 3, "tokenizer_config.json"),
    "bad class": field("tokenizer_class", [], "tokenizer_config.json"),
    "bad config": text("3", "tokenizer_config.json"),
    "a lone surrogate": field("\ud800", "x", "tokenizer_config.json"),
    "bad template": lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\0"),
    "missing": lambda folder: [file.unlink() for file in folder.glob("tokenizer*")],
}


@pytest.mark.parametrize("name", BROKEN_TOKENIZERS)
def test_broken_tokenizers_are_refused_in_one_line(name: str, folder: Path) -> None:
    BROKEN_TOKENIZERS[name](folder)
    with pytest.raises(ModelError) as error:
        load_tokenizer(str(folder))
    assert str(folder) in str(error.value) and one_line(error)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{", "chat template fails"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ raise_exception('no\nway') }}", r"fails \(no\)"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'x' %}", "no loader"),
        ("{{ strftime_now(3) }}", "must be str"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(3) }}", "unsafe"),
        ("", "drops messages"),
        ("{{ messages[1].content }}", "drops messages"),
    ],
)
def test_templates_that_fail_are_refused_in_one_line(template: str, message: str, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=message) as error:
        TransformersEngine(load_model(str(folder), device="cpu"), load_tokenizer(str(folder)), style=PromptStyle.CHAT)
    assert one_line(error)


@pytest.fixture(scope="module")
def whole_adapter(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapter") / "adapter"
    settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(load_model(str(whole), dtype="float32", device="cpu"), settings).save_pretrained(made)
    return made


ADAPTER, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
BROKEN_ADAPTERS: dict[str, tuple[Break, str]] = {
    "no JSON": (text("{", ADAPTER), "not a LoRA adapter's config"),
    "nothing": (text("{}", ADAPTER), "`peft_type`"),
    "nested": (text("[" * 100_000, ADAPTER), "nested deeper"),
    "no base": (field("base_model_name_or_path", None, ADAPTER), "base_model_name_or_path"),
    "another kind": (field("peft_type", "IA3", ADAPTER), "IA3"),
    "no rank": (field("r", 0, ADAPTER), r"adapter_config\.json: r: expected `int`"),
    "text for a rank": (field("r", "x", ADAPTER), r"adapter_config\.json: r: expected `int`"),
    "another method": (field("alora_invocation_tokens", [3], ADAPTER), "aLoRA is not supported"),
    "another rank": (field("r", 3, ADAPTER), "size mismatch"),
    "targets that match nothing": (field("target_modules", ["x"], ADAPTER), "not found"),
    "fewer targets": (field("target_modules", ["up_proj"], ADAPTER), "unexpected"),
    "no pattern": (field("target_modules", "[", ADAPTER), "cannot be loaded"),
    "a list of ranks": (field("alpha_pattern", 3, ADAPTER), "cannot be loaded"),
    "empty weights": (cut(0, ADAPTER_FILE), "truncated"),
    "no weights": (lambda folder: (folder / ADAPTER_FILE).unlink(), "holds no adapter_model.safetensors"),
    "a weight less": (weights(lambda tensors: tensors.pop(FIRST), ADAPTER_FILE), rf"1 missing \({FIRST}\)"),
    "a weight more": (
        weights(lambda tensors: tensors.update(more=torch.ones(1)), ADAPTER_FILE),
        r"1 unexpected \(more\)",
    ),
    "no number": (weights(lambda tensors: tensors[FIRST].fill_(float("nan")), ADAPTER_FILE), "not finite"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BROKEN_ADAPTERS)
def test_broken_adapters_are_refused_in_one_line(name: str, whole_adapter: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole_adapter, tmp_path / "adapter"))
    change, message = BROKEN_ADAPTERS[name]
    change(folder)
    with pytest.raises(ModelError, match=message) as error:
        load_model(str(folder), dtype="float32", device="cpu")
    assert str(folder) in str(error.value) and one_line(error)


def test_an_adapter_of_an_adapter_is_refused(whole_adapter: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole_adapter, tmp_path / "adapter"))
    field("base_model_name_or_path", str(folder), ADAPTER)(folder)
    for look in (adapter_base, read_adapter):
        with pytest.raises(ModelError, match="an adapter itself; merge that into its base model first"):
            look(folder)


def test_an_adapters_pickles_are_never_read(whole_adapter: Path, tmp_path: Path) -> None:
    class Touching:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    folder = Path(shutil.copytree(whole_adapter, tmp_path / "adapter"))
    (folder / ADAPTER_FILE).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Touching()))
    with pytest.raises(ModelError, match="pickled weights are never loaded"):
        load_model(str(folder), dtype="float32", device="cpu")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("device", ["banana", "", "cpu:x", "cuda:-1", "meta", "cuda:99"])
def test_devices_that_are_not_there_are_refused_before_anything_is_read(device: str) -> None:
    with pytest.raises(ConfigError, match=f"model.device={device}: "):
        load_model("./none", device=device)


def test_cuda_without_a_gpu_names_the_cpu() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"model.device=cuda: no GPU is visible; set model.device=cpu"):
            checked_device("cuda")


@pytest.mark.parametrize("targets", ["nothing", ["nothing"], "[", []])
def test_adapters_for_no_layer_are_refused(targets: Any, whole: Path) -> None:
    model, lora = (
        ModelConfig(name=str(whole), device="cpu", dtype="float32"),
        LoraSettings(rank=2, target_modules=targets),
    )
    accelerator = make_accelerator(model, UpdateSettings(lora=lora), seed=0)
    with pytest.raises(ConfigError, match=r"^lora: .* supports no such adapter: ") as error:
        trainable(model, lora, accelerator, seed=0, longest=16, roles={}, sharded=False)
    assert one_line(error)


@pytest.fixture
def loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_model(str(folder), dtype="float32", device="cpu"), load_tokenizer(str(folder))


def test_weights_that_are_not_finite_are_not_saved(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    model, tokenizer = loaded
    save_model(model, tokenizer, tmp_path / "saved")
    before = (tmp_path / "saved" / "model.safetensors").read_bytes()
    gathered = {name: value.clone() for name, value in model.state_dict().items()}
    gathered["lm_head.weight"][0, 0] = torch.inf
    with pytest.raises(
        ModelError, match=r"not saved: lm_head.weight contains numbers that are not finite; lower the learning rate"
    ):
        save_model(model, tokenizer, tmp_path / "saved", gathered)
    model.get_parameter(UP).data[0, 0] = torch.nan
    with pytest.raises(ModelError, match=f"not saved: {UP}"):
        save_model(model, tokenizer, tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == before


def test_large_finite_weights_are_fine(folder: Path) -> None:
    """Their sum is infinite in float32."""
    weights(lambda tensors: tensors[UP].fill_(1e38))(folder)
    load_model(str(folder), dtype="float32", device="cpu")
    with pytest.raises(ModelError, match="not finite"):
        load_model(str(folder), dtype="float16", device="cpu")


def play(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str = "hello", temperature: float = 0.0
) -> str:
    engine = TransformersEngine(model, tokenizer, concurrency=2)
    engine.submit(Request("r", prompt, SamplingConfig(temperature=temperature, max_new_tokens=3), seed=1))
    while not (done := engine.poll()):
        pass
    return done[0].text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_not_finite_end_play(
    value: float, temperature: float, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    model, tokenizer = loaded
    assert play(model, tokenizer, temperature=temperature)
    model.lm_head.weight.data[7] = value
    with pytest.raises(
        EngineError, match=r"r: the model's output is not finite \(model.dtype=float32\); set model.dtype=float32"
    ):
        play(model, tokenizer, temperature=temperature)


def test_tokens_that_the_model_lacks_are_refused(
    folder: Path, loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    model, tokenizer = loaded
    tokenizer.add_tokens(["[extra]"])
    assert play(model, tokenizer) is not None
    with pytest.raises(ModelError, match="token 258 is beyond the model's 258; the tokenizer is another model's"):
        play(model, tokenizer, "an [extra] token")
    field("eos_token_id", [1, 70_000], "generation_config.json")(folder)
    with pytest.raises(ModelError, match="token 70000 is beyond the model's 258"):
        play(load_model(str(folder), dtype="float32", device="cpu"), tokenizer)


def test_a_window_that_is_no_number_is_refused(folder: Path) -> None:
    field("sliding_window", "x")(folder)
    with pytest.raises(ModelError, match=r"sliding_window is 'x' in config\.json"):
        play(load_model(str(folder), dtype="float32", device="cpu"), load_tokenizer(str(folder)))


class Panic(BaseException):
    """What Rust's libraries raise when they panic; its class cannot be imported."""


Panic.__module__ = "pyo3_runtime"


TRANSLATED = [
    *(ValueError(), RecursionError(), SafetensorError(), TemplateError(), Panic(), MemoryError(), ZeroDivisionError()),
    Exception("of tokenizers"),
]
PASSED = [KeyboardInterrupt(), SystemExit(), ModelError("ours"), ConfigError("ours"), StopIteration()]


@pytest.mark.parametrize("error", TRANSLATED + PASSED, ids=lambda error: type(error).__name__)
def test_only_what_libraries_raise_is_translated(error: BaseException) -> None:
    with pytest.raises(BaseException) as caught, library_errors(lambda error: EngineError(first_line(error))):
        raise error
    assert isinstance(caught.value, EngineError) if error in TRANSLATED else caught.value is error


def test_what_announces_another_line_brings_it_along() -> None:
    assert first_line(ValueError("first\nsecond")) == "first"
    assert first_line(ValueError("Error in x:\n    size mismatch\nthird")) == "Error in x: size mismatch"
    assert first_line(KeyError()) == "KeyError"


def test_a_models_type_is_read_from_whatever_is_there(folder: Path) -> None:
    assert model_type(str(folder)) == "llama"
    for content in ("[]", "{", '{"model_type": 3}', "[" * 100_000):
        (folder / "config.json").write_text(content)
        assert model_type(str(folder)) is None
    assert resolve_model(str(folder)) == str(folder)
