"""To the hub. The token comes from ``HF_TOKEN`` alone, so that nothing is published under a name that was forgotten on the machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by the hub's version
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from spag.core.errors import ConfigError, StorageError, first_line

TOKEN = "HF_TOKEN"


@dataclass(frozen=True, slots=True)
class Destination:
    """A repository on the hub. private: make it private where it is new; where it is there, insist on it."""

    repo: str
    private: bool = False


def check_destination(destination: Destination) -> None:
    """Raise ``ConfigError`` for what can be seen to fail before the work: no ORG/REPO, or no token."""
    try:
        validate_repo_id(destination.repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {destination.repo}: {first_line(error)}") from error
    if "/" not in destination.repo:
        raise ConfigError(f"--push {destination.repo}: name the owner too, as in --push YOUR-NAME/{destination.repo}")
    if not os.environ.get(TOKEN):
        raise ConfigError(f"--push {destination.repo}: {TOKEN} is not set; put a token with write access into it")


def push(folder: Path, destination: Destination) -> str:
    """Upload ``folder`` as the repository's newest commit and return its address. Raises ``StorageError``; the folder stays."""
    api = HfApi(token=os.environ.get(TOKEN))
    repo = destination.repo
    try:
        url = api.create_repo(repo, private=destination.private or None, exist_ok=True)
        if destination.private and not api.repo_info(repo).private:
            raise StorageError(f"{repo}: is there already and public, so --private cannot hold; choose another name, or leave it out")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Export of spag")
    except (OSError, HTTPError, ValueError) as error:
        raise StorageError(f"{repo}: not uploaded: {first_line(error)}; {folder} is complete, upload it when that is mended") from error
    return str(url)
