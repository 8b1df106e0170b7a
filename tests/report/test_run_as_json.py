"""``spag run --json``: where a finished run's results are, for programs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_fixtures import write_run

from spag.cli import main


@pytest.mark.slow
def test_a_finished_run_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run")
    page = folder / "report" / "index.html"
    page.parent.mkdir()
    page.touch()  # newer than the results, so it is not written again
    monkeypatch.setattr("spag.runs.execute.run", lambda *_, **__: None)
    command = ["run", str(folder / "config.yaml"), "--json", "--output", str(folder)]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert (found["folder"], found["report"]) == (str(folder), str(page))
    assert {row["name"] for row in found["arena"]["roles"]} == {"base", "imitation", "spag-1"}
    assert found["models"]["base"] == "tiny <model>"
