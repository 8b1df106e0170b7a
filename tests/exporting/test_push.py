"""The hub at its edge: a class in the place of ``HfApi``, and the real one without a network."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from spag.core.errors import ConfigError, StorageError
from spag.export import Destination, export_model, find_source
from spag.export import model as exporting
from tiny_model import make_model


class Hub:
    """Stands for ``HfApi``: remembers what it was asked."""

    public: ClassVar[bool] = False
    asked: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, token: str | None) -> None:
        Hub.asked = [("token", token)]

    def create_repo(self, repo: str, **options: Any) -> str:
        Hub.asked.append((repo, options))
        return f"https://hub.example/{repo}"

    def repo_info(self, repo: str) -> Any:
        return type("Info", (), {"private": not self.public})

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        Hub.asked.append((repo_id, sorted(path.name for path in folder_path.iterdir())))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(exporting, "HfApi", Hub)
    monkeypatch.setattr(Hub, "public", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return Hub


def test_push_uploads_the_finished_folder(tmp_path: Path, hub: type[Hub]) -> None:
    folder = make_model(tmp_path / "plain")
    exported = export_model(find_source(str(folder)), tmp_path / "out", destination=Destination("me/mine", private=True))
    assert exported.url == "https://hub.example/me/mine"
    files = ["README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert hub.asked == [("token", "hf_secret"), ("me/mine", {"private": True, "exist_ok": True}), ("me/mine", files)]


def test_private_is_not_pushed_into_a_public_repository(tmp_path: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "public", True)
    with pytest.raises(StorageError, match="me/mine: exists and is public"):
        exporting.push(tmp_path, Destination("me/mine", private=True))
    assert len(hub.asked) == 2  # nothing was uploaded


@pytest.mark.parametrize(("repo", "says"), [("mine", "name the owner too"), ("me/mine/more", "--push me/mine/more: "), ("me/..", "me/..")])
def test_a_destination_that_cannot_work_is_refused_before_the_work(tmp_path: Path, hub: type[Hub], repo: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        export_model(find_source(str(make_model(tmp_path / "plain"))), tmp_path / "out", destination=Destination(repo))
    assert not (tmp_path / "out").exists()


def test_the_token_comes_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="HF_TOKEN is not set"):
        exporting.check_destination(Destination("me/mine"))


def test_a_network_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")  # the real HfApi; the tests are offline
    with pytest.raises(StorageError, match=r"^me/mine: not uploaded: .* is complete: fix this, then hf upload me/mine") as failed:
        exporting.push(tmp_path, Destination("me/mine"))
    assert "\n" not in str(failed.value) and "hf_secret" not in str(failed.value)
