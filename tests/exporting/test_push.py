"""Pushing: to a fake hub, and with the real ``HfApi`` without a network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects

from spag.core.errors import ConfigError, StorageError
from spag.export import Destination, export_model, find_source
from spag.export.model import check_destination, push
from tiny_model import make_model


class Hub:
    """Stands for ``HfApi``: remembers what it was asked, and the repository's ``files``."""

    def __init__(self, *, private: bool = True, files: tuple[str, ...] = ()) -> None:
        self.private, self.asked, self.files = private, list[tuple[str, Any]](), {*files}

    def create_repo(self, repo: str, **options: Any) -> str:
        self.asked.append((repo, options))
        return f"https://hub.example/{repo}"

    def repo_info(self, repo: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private)

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: list[str]
    ) -> None:
        names = sorted(path.name for path in folder_path.iterdir())
        self.asked.append((repo_id, names))
        self.files -= set(filter_repo_objects(self.files, allow_patterns=delete_patterns))
        self.files |= {*names}


def test_push_uploads_the_folder(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    hub = Hub()
    assert push(tmp_path, Destination("me/mine", private=True), hub) == "https://hub.example/me/mine"
    assert hub.asked == [("me/mine", {"private": True, "exist_ok": True}), ("me/mine", ["README.md"])]


def test_no_weights_of_an_earlier_push_stay_which_would_be_loaded_instead(tmp_path: Path) -> None:
    for name in ("model.safetensors", "README.md"):
        (tmp_path / name).touch()
    shards = ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
    adapter = ("adapter_config.json", "adapter_model.safetensors")
    hub = Hub(files=(*shards, *adapter, "LICENSE", "other/model.safetensors"))
    push(tmp_path, Destination("me/mine"), hub)
    assert hub.files == {"model.safetensors", "README.md", "LICENSE", "other/model.safetensors"}


def test_private_is_not_pushed_into_a_public_repository(tmp_path: Path) -> None:
    hub = Hub(private=False)
    with pytest.raises(StorageError, match="me/mine: exists and is public"):
        push(tmp_path, Destination("me/mine", private=True), hub)
    assert len(hub.asked) == 1  # nothing was uploaded


@pytest.mark.parametrize(
    ("repo", "says"), [("mine", "name the owner too"), ("me/mine/more", "--push me/mine/more: "), ("me/..", "me/..")]
)
def test_a_destination_that_cannot_work_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: str, says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(ConfigError, match=says):
        export_model(find_source(str(make_model(tmp_path / "plain"))), tmp_path / "out", destination=Destination(repo))
    assert not (tmp_path / "out").exists()


def test_the_token_comes_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="HF_TOKEN is not set"):
        check_destination(Destination("me/mine"))


def test_a_network_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")  # the real HfApi; the tests are offline
    with pytest.raises(
        StorageError, match=r"^me/mine: not uploaded: .* is complete: fix this, then hf upload me/mine"
    ) as failed:
        push(tmp_path, Destination("me/mine"))
    assert "\n" not in str(failed.value) and "hf_secret" not in str(failed.value)
