"""The docs site: every page is in the navigation, and pages read on it as they do in the repository."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def _hooks() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without what only mkdocs can make of it."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Loader)
    assert config["strict"] is True
    pages = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages_of(config["nav"])) == pages


def test_links_that_leave_the_docs_lead_into_the_repository_or_nowhere() -> None:
    text = "[a](../examples/x.py) [b](training.md#x) ![c](../demo.svg)"
    replaced = _hooks().without_outside_links
    assert replaced(text, "games.md", None) == "a [b](training.md#x) ![c](../demo.svg)"
    link = "[a](https://host/spag/blob/main/examples/x.py)"
    assert replaced(text, "games.md", "https://host/spag/").startswith(link)
    assert replaced("[d](../ablations.md)", "results/README.md", None) == "[d](../ablations.md)"


def test_a_list_after_a_paragraph_is_a_list() -> None:
    with_lists = _hooks().with_lists
    assert with_lists("Text:\n- one\n  goes on\n- two") == "Text:\n\n- one\n  goes on\n- two"
    for same in ("# Head\n- one", "- one\ngoes on\n- two", "```\ntext\n- one\n```", "| a |\n- one"):
        assert with_lists(same) == same


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'id="spag.training.losses.offline_rl_loss"' in (site / "api.html").read_text(encoding="utf-8")
    shutil.rmtree(site)
