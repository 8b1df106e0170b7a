"""Shared by the tests of engines: the tiny model, loaded once, and one running vLLM, which takes a quarter of a minute
to start.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spag.config.schema import EngineConfig, ModelConfig
from tiny_model import make_model

if TYPE_CHECKING:
    from tiny_vllm import TinyVLLM
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from spag.engines.vllm.engine import VLLMEngine


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from spag.models.loading import load_model, load_tokenizer

    return load_model(str(model_folder), dtype="float32", device="cpu"), load_tokenizer(str(model_folder))


@pytest.fixture(scope="session")
def padded(tmp_path_factory: pytest.TempPathFactory) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A model with 42 logits more than its tokenizer has tokens, as many have."""
    from spag.models.loading import load_model, load_tokenizer

    folder = str(make_model(tmp_path_factory.mktemp("padded"), vocab_size=300))
    return load_model(folder, dtype="float32", device="cpu"), load_tokenizer(folder)


@pytest.fixture(scope="session")
def tiny_vllm(tmp_path_factory: pytest.TempPathFactory) -> "TinyVLLM":
    from tiny_vllm import make_tiny_vllm

    return make_tiny_vllm(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def vllm_engines(request: pytest.FixtureRequest) -> "Iterator[list[VLLMEngine]]":
    """The base model's engine and its two adapters', over one vLLM. Closing one, or another over the same pool, only
    waits until nothing is in flight.
    """
    fork_vllm: Callable[[pytest.MonkeyPatch], None] = request.getfixturevalue("fork_vllm")
    from spag.engines.vllm.opening import open_vllm

    tiny: TinyVLLM = request.getfixturevalue("tiny_vllm")
    models = [ModelConfig(name=str(folder), dtype="float32", device="cpu") for folder in (tiny.base, *tiny.adapters)]
    with pytest.MonkeyPatch.context() as patch:
        fork_vllm(patch)
        engines = open_vllm(models, EngineConfig(concurrency=16, max_length=512), 1)
    pool, close = engines[0].pool, engines[0].pool.close

    def finish() -> None:
        while pool._callbacks:
            pool.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "close", finish)
        yield engines
    close()
