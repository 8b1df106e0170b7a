"""Whatever stands in a config file or in ``--set``: a config, or one line that says what is wrong, at once."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from spag.config.files import load_config, parse_config
from spag.core.errors import ConfigError

NAMES = "abcdefghijklmnopqrstuvwxy"
ALIASES = "\n".join(
    ["a: &a [x, x, x]", *(f"{new}: &{new} [*{old}, *{old}, *{old}]" for old, new in pairwise(NAMES[:15]))]
)
MERGES = "\n".join(["a: &a {k: 1}", *(f"{new}: &{new} {{<<: [*{old}, *{old}]}}" for old, new in pairwise(NAMES))])
TEXTS = {
    "[" * 5000: "nested deeper than 20 levels",
    f"a: {'[' * 100}{']' * 100}": "nested deeper than 20 levels",
    "a: &a [*a]": "nested deeper than 20 levels",
    ALIASES: "more than 20,000 values",
    MERGES: "merged mappings have too many values",
    f"seed: {'9' * 5000}": "a number of thousands of digits",
    f"game: {{max_turns: 1{'0' * 400}}}": "game.max_turns: the number does not fit into 64 bits",
    "game: {max_turns: .nan}": "game.max_turns: input should be a finite number, got nan",
    "phases: [{algorithm: spag, learning_rate: .inf}]": "phases.0.learning_rate: input should be a finite number",
    "seed: 2020-99-99": "seed: input should be a valid integer, unable to parse string as an integer, got '2020-99-99'",
    "seed: !!timestamp 2020-99-99": "a value that does not match its tag",
    "seed: !!int ''": "a value that does not match its tag",
    "seed: !!bool maybe": "a value that does not match its tag",
    "seed: 1\nseed: 2": "seed is given twice",
    "model: {name: a, dtype: float32, name: b}": "name is given twice",
    "seed: !!binary aGVsbG8=": "seed: b'hello' is not a plain value",
    "seed: !!python/object/apply:os.getcwd []": "could not determine a constructor",
    "model: {name: 'a\\b', device: \"a\\ab\"}": r"model.device: 'a\x07b' contains a control character",
    'model: {name: "\\ud800"}': "model.name: '\\ud800' contains a control character",
    f"model: {{name: {'x/' * 3000}}}": "model.name: a text of 6,000 characters",
    f"game: {{words: {'x' * 300}}}": "holds a name of more than 255 bytes",
    "1: 2": "1 is not an option name",
    "game: {1: 2}": "game: 1 is not an option name",
    "game: {name: [a]}": "game: a game has a name and settings by name",
    "phases: [{algorithm: reinforce, mix: [{name: 3}]}]": "a game has a name and settings by name",
    "phases: [{algorithm: reinforce, mix: [3]}]": "phases.0.mix.0: input should be a mapping of options, got 3",
    "phases: 3": "phases: input should be a valid list, got 3",
    "phases: []": "phases: list should have at least 1 item",
    "game: kuhn_poker": "game: input should be a mapping of options",
    "0": "expected a mapping of options, got int",
    "phases: [{algorithm: spag, sampling: {temperature: 1.0e-300}}]": "input should be 0 (greedy) or from 0.01",
    "seed: -1": "seed: input should be greater than or equal to 0",
    "phases: [{algorithm: spag, tasks: 10000000000}]": "phases.0.tasks: input should be less than or equal to",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_no_config_is_one_line(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "FILE")
    said = str(caught.value)
    assert said.startswith("FILE: ")
    assert TEXTS[text] in said
    assert "\n" not in said
    assert len(said) < 400
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("seed: 1\n".encode("utf-16"), "not UTF-8 at byte 0"),
        (b"seed: 1\xff", "not UTF-8 at byte 7"),
        (b"\0" * 100, "not YAML"),
        (b"# " + b"x" * 2**18, "longer than 262,144 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_a_byte_order_mark_is_no_fault_and_an_empty_file_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "marked.yaml").write_bytes("seed: 3\n".encode("utf-8-sig"))
    (tmp_path / "empty.yaml").write_bytes(b"")
    assert load_config(str(tmp_path / "marked.yaml")).seed == 3
    assert load_config(str(tmp_path / "empty.yaml")) == parse_config("", "defaults")


@pytest.mark.parametrize("name", ["", ".", "x" * 5000, "a\0b", "/"])
def test_a_name_of_no_file_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match="no such config file, and no preset of that name"):
        load_config(name)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=2020-99-99", "seed: input should be a valid integer"),
        ("seed=\0", "--set: seed: not YAML"),
        ("seed=[", "--set: seed: not YAML"),
        ("seed=1e400", "seed: input should be a valid integer"),
        ("spag.learning_rate=1e400", "phases.1.learning_rate: input should be a finite number"),
        ("a..b=1", "--set a..b=1: write it as a.b=value"),
        ("a\nb=1", r"--set a\nb=1: write it as a.b=value"),
        (f"{'x' * 5000}=1", "write it as a.b=value"),
        (f"{'a.' * 5000}a=1", "write it as a.b=value"),
        ("game.name=[1]", "game: a game has a name"),
        ("phases.9.game.name=nim", "--set phases.9.game.name: 9 is not one of the 2 entries, which count from 0"),
        ("phases.x.game.name=nim", "--set phases.x.game.name: x is not one of the 2 entries, which count from 0"),
    ],
)
def test_an_override_that_cannot_be_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("", "test", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_game_that_is_no_mapping_can_still_be_replaced_by_name() -> None:
    assert parse_config("game: nonsense", "test", ["game.name=kuhn_poker"]).game.name == "kuhn_poker"
