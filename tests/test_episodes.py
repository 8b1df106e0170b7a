"""Reading our rows and upstream's, and saying exactly what is wrong with a broken file."""

import json
from pathlib import Path

import pytest

from spag.algorithms.spag import assign_rewards
from spag.core.episodes import SampleType, TrainingSample, read_episodes, read_samples
from spag.core.errors import DataError
from spag.core.sft import read_sft
from spag.core.store import write_rows
from spag.games.taboo.upstream import upstream_episode, upstream_sample
from taboo_games import task_of

GOOD = '{"target_word":"river","max_turns":5,"history":[{"role":"attacker","content":"Hi"}]}'


def test_upstreams_list_and_json_lines_read_alike(tmp_path: Path) -> None:
    listed, lines = tmp_path / "list.json", tmp_path / "lines.jsonl"
    listed.write_text(json.dumps([json.loads(GOOD)] * 2, indent=1))
    lines.write_text(f"{GOOD}\n\n{GOOD}\n")
    assert list(read_episodes(listed)) == list(read_episodes(lines))
    (first, _) = read_episodes(listed)
    assert (first.task.data["target_word"], first.history[0].role, first.outcome) == ("river", "attacker", None)
    assert upstream_episode(first) == json.loads(GOOD)


SCHEMA_1 = """{"id":"river-0","game":"adversarial_taboo","target_word":"river","max_turns":5,"history":[
{"role":"attacker","content":"It flows to the sea.","finish_reason":"eos","token_ids":[5,6],"logprobs":[-0.5,-1.0]},
{"role":"defender","content":"I know the word! It is `river`!","finish_reason":"stop"}],"outcome":"defender_wins","reason":"announced",
"seed":7,"players":{"attacker":{"model":"a","sampling":{"top_k":3}},"defender":{"model":"d","sampling":{}}},"schema_version":1}"""
SCHEMA_2 = """{"id":"river-0","game":"adversarial_taboo","task":{"id":"river","data":{"target_word":"river","max_turns":5}},"history":[
{"role":"attacker","content":"It flows to the sea.","finish_reason":"eos","token_ids":[5,6],"logprobs":[-0.5,-1.0]},
{"role":"defender","content":"I know the word! It is `river`!","finish_reason":"stop"}],"outcome":"defender_wins","reason":"announced",
"seed":7,"players":{"attacker":{"model":"a","sampling":{"top_k":3}},"defender":{"model":"d","sampling":{}}},"schema_version":2}"""


def test_rows_of_schema_1_read_as_todays(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    path.write_text("".join(row.replace("\n", "") + "\n" for row in (SCHEMA_1, SCHEMA_2)))
    old, new = read_episodes(path)
    assert old == new
    assert (old.task, old.history[0].token_ids, old.schema_version) == (task_of("river"), (5, 6), 2)
    write_rows(path, [old])
    assert list(read_episodes(path)) == [new]


def test_games_of_old_and_new_rows_are_judged_and_paid_alike(tmp_path: Path) -> None:
    paid = []
    for row in (SCHEMA_1, SCHEMA_2):
        (tmp_path / "games.jsonl").write_text(row.replace("\n", "") + "\n")
        paid.append(assign_rewards(read_episodes(tmp_path / "games.jsonl")))
    assert paid[0] == paid[1]
    assert [(sample.role, sample.completion, sample.reward) for sample in paid[0]] == [("defender", "I know the word! It is `river`!", 1.0)]


def test_samples_under_old_names_read_as_todays(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    shared = {"reward": 0.5, "weight": 0.75, "role": "attacker", "type": "rl", "episode_id": "river-0", "turn": 2}
    rows = [{"query": "p", "target": "c"}, {"prompt": "p", "answer": "c"}, {"prompt": "p", "completion": "c"}]
    path.write_text("".join(json.dumps(row | shared) + "\n" for row in rows))
    sample = TrainingSample(prompt="p", completion="c", reward=0.5, weight=0.75, role="attacker", episode_id="river-0", turn=2)
    assert list(read_samples(path)) == [sample] * 3
    write_rows(path, [sample])
    assert {"prompt", "completion"} < json.loads(path.read_text()).keys()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"target_word": "river"', r"bad\.jsonl:2: not JSON"),
        (b"[1]", r"bad\.jsonl:2: expected a JSON object, got list"),
        (b'{"target_word":"\xff\xfe","max_turns":5,"history":[]}', r"bad\.jsonl:2: not UTF-8 at byte 16"),
        (b'{"max_turns":5,"history":[]}', r"bad\.jsonl:2: object missing required field `target_word`"),
        (b'{"target_word":"  ","max_turns":5,"history":[]}', r"bad\.jsonl:2: target_word is empty"),
        (b'{"target_word":"a","max_turns":0,"history":[]}', r"bad\.jsonl:2: max_turns is 0; it must be at least 1"),
        (b'{"target_word":"a","max_turns":"5","history":[]}', r"bad\.jsonl:2: expected `int`, got `str` - at `\$\.max_turns`"),
        (
            b'{"target_word":"a","max_turns":5,"history":[{"role":"referee","content":""}]}',
            r"bad\.jsonl:2: utterance 1 has the role 'referee'; the roles are attacker and defender",
        ),
        (b'{"target_word":"a","max_turns":5,"history":[],"schema_version":99}', r"bad\.jsonl:2: schema_version 99 is newer"),
        (b'{"game":"g","task":{"id":"t"},"history":[],"schema_version":99}', r"bad\.jsonl:2: schema_version 99 is newer"),
        (b'{"task":{"id":"t","data":{"max_turns":5}},"history":[]}', r"bad\.jsonl:2: object missing required field `target_word`"),
        (b'{"game":"g","task":"t","history":[]}', r"bad\.jsonl:2: expected `object`, got `str` - at `\$\.task`"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=message):
        list(read_episodes(path))


def test_a_broken_list_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(f"[{GOOD}, 7]")
    with pytest.raises(DataError, match=r"bad\.json: row 2: expected a JSON object, got int"):
        list(read_episodes(path))


def test_utf16_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(DataError, match=r"wide\.jsonl:1: not UTF-8 at byte 0; save the file as UTF-8"):
        list(read_episodes(path))


def test_a_missing_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: cannot be read: No such file"):
        list(read_episodes(tmp_path / "none"))


def test_upstreams_sample_names_are_understood_and_written(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    rows = [
        {"query": "q", "target": "t", "reward": 0.25, "weight": 0.5, "role": "defender"},
        {"prompt": "p", "answer": "a", "type": "sft", "weight": 1.0},
    ]
    path.write_text(json.dumps(rows))
    rl, sft = read_samples(path)
    assert (rl.type, rl.role, rl.reward) == (SampleType.RL, "defender", 0.25)
    assert (sft.type, sft.role, sft.prompt, sft.completion) == (SampleType.SFT, None, "p", "a")
    assert upstream_sample(rl) == rows[0]
    assert upstream_sample(sft) == {"query": "p", "target": "a", "reward": 1.0, "weight": 1.0, "type": "sft"}


def test_an_empty_completion_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"query":"q","target":" "}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl:1: the completion is empty"):
        list(read_samples(path))


def test_alpaca_rows_become_sft_samples(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.json"
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Say hi.", "input": "", "output": "hi"},
        {"instruction": "Nothing", "input": "", "output": " "},
    ]
    path.write_text(json.dumps(rows))
    samples = read_sft(path, None, seed=0)
    assert [(s.prompt, s.completion, s.type) for s in samples] == [
        ("Add.\n\n1 and 2\n", "3", SampleType.SFT),
        ("Say hi.\n", "hi", SampleType.SFT),
    ]
    assert read_sft(path, 1, seed=3) == read_sft(path, 1, seed=3)
    assert len(read_sft(path, 1, seed=3)) == 1


def test_alpaca_faults_name_the_row(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.json"
    path.write_text('[{"instruction": 5, "output": "x"}]')
    with pytest.raises(DataError, match="row 1: instruction, input and output must be text"):
        read_sft(path, None, seed=0)
