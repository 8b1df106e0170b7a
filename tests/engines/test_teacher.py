"""Teacher play through the command line against a real HTTP endpoint: collected, counted, resumed."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from openai_stub import Answer, Call, StubServer, completion

from spag.cli import main
from spag.storage.episodes import read_episodes


@pytest.mark.slow
def test_teacher_games_are_collected_counted_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []

    def answer(call: Call) -> Answer:
        calls.append(call)
        attacks = "You are the attacker" in call.prompt
        text = "Think of water." if attacks else "I know the word! It is `river`!"
        return Answer(completion(text, "stop", prompt_tokens=1000, completion_tokens=500))

    words, out = tmp_path / "words.txt", tmp_path / "teacher.jsonl"
    words.write_text("river\nbread\npiano\nwindow\ngarden\nteacher\nengine\ndoctor\n")
    with StubServer(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
        command = [
            "play",
            "openai:gpt-test",
            "--words",
            str(words),
            "--output",
            str(out),
        ]
        first = CliRunner().invoke(main, [*command, "--count", "3"])
        assert first.exit_code == 0, first.output
        again = CliRunner().invoke(main, [*command, "--count", "3"])
    games = list(read_episodes(out))
    assert len(games) == 3
    assert {game.players[role].model for game in games for role in game.players} == {"openai:gpt-test"}
    assert len(calls) == 6
    assert "6,000 prompt and 3,000 completion tokens" in first.output
    assert "3 games in the file, 0 played now" in again.output
    assert "sk-secret-value" not in first.output + again.output + out.read_text()


def test_a_missing_key_is_said_before_any_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    command = [
        "play",
        "openai:m",
        "--words",
        "shipped",
        "--count",
        "1",
        "--output",
        str(tmp_path / "x.jsonl"),
    ]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "OPENAI_API_KEY" in result.output
