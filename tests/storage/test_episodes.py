"""Reading our rows and upstream's, and saying exactly what is wrong with a broken file."""

import json
import logging
from pathlib import Path

import pytest

from spag.algorithms.winners import assign_rewards
from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.games.taboo.upstream import upstream_episode, upstream_sample
from spag.storage.episodes import read_episodes, read_samples, read_sft
from spag.storage.store import write_rows
from taboo_games import task_of

REAL_ALPACA = Path(__file__).parents[3] / "shared" / "data" / "sft" / "alpaca_random_9k.json"
GOOD = '{"target_word":"river","max_turns":5,"history":[{"role":"attacker","content":"Hi"}]}'


def test_upstreams_list_and_json_lines_read_alike(tmp_path: Path) -> None:
    listed, lines = tmp_path / "list.json", tmp_path / "lines.jsonl"
    listed.write_text(json.dumps([json.loads(GOOD)] * 2, indent=1))
    lines.write_text(f"{GOOD}\n\n{GOOD}\n")
    assert list(read_episodes(listed)) == list(read_episodes(lines))
    (first, _) = read_episodes(listed)
    assert (first.task.data["target_word"], first.history[0].role, first.outcome) == ("river", "attacker", None)
    assert upstream_episode(first) == json.loads(GOOD)


WITH_WORD = """{"id":"river-0","game":"adversarial_taboo","target_word":"river","max_turns":5,"history":[
{"role":"attacker","content":"It flows to the sea.","finish_reason":"eos","token_ids":[5,6],"logprobs":[-0.5,-1.0]},
{"role":"defender","content":"I know the word! It is `river`!","finish_reason":"stop"}],"outcome":"defender_wins",
"reason":"announced","seed":7,"players":{"attacker":{"model":"a","sampling":{"top_k":3}},
"defender":{"model":"d","sampling":{}}}}"""
WITH_TASK = """{"id":"river-0","game":"adversarial_taboo",
"task":{"id":"river","data":{"target_word":"river","max_turns":5}},
"history":[{"role":"attacker","content":"It flows to the sea.",
"finish_reason":"eos","token_ids":[5,6],"logprobs":[-0.5,-1.0]},
{"role":"defender","content":"I know the word! It is `river`!","finish_reason":"stop"}],"outcome":"defender_wins",
"reason":"announced","seed":7,"players":{"attacker":{"model":"a","sampling":{"top_k":3}},
"defender":{"model":"d","sampling":{}}},"schema_version":2}"""


def test_a_row_with_upstreams_word_and_turns_is_read_as_one_with_a_task(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    [one], [other] = (
        path.write_text(row.replace("\n", "") + "\n") and list(read_episodes(path)) for row in (WITH_WORD, WITH_TASK)
    )
    assert one == other
    assert (one.task, one.history[0].token_ids, one.schema_version) == (task_of("river"), (5, 6), 2)
    write_rows(path, [one])
    assert list(read_episodes(path)) == [other]


def test_games_of_both_kinds_of_rows_are_judged_and_paid_alike(tmp_path: Path) -> None:
    paid = []
    for row in (WITH_WORD, WITH_TASK):
        (tmp_path / "games.jsonl").write_text(row.replace("\n", "") + "\n")
        paid.append(assign_rewards(read_episodes(tmp_path / "games.jsonl")))
    assert paid[0] == paid[1]
    assert [(sample.role, sample.completion, sample.reward) for sample in paid[0]] == [
        ("defender", "I know the word! It is `river`!", 1.0)
    ]


def test_samples_under_old_names_read_as_todays(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    shared = {"reward": 0.5, "weight": 0.75, "role": "attacker", "type": "rl", "episode_id": "river-0", "turn": 2}
    rows = [{"query": "p", "target": "c"}, {"prompt": "p", "answer": "c"}, {"prompt": "p", "completion": "c"}]
    path.write_text("".join(json.dumps(row | shared) + "\n" for row in rows))
    sample = TrainingSample(
        prompt="p", completion="c", reward=0.5, weight=0.75, role="attacker", episode_id="river-0", turn=2
    )
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
        (
            b'{"target_word":"a","max_turns":"5","history":[]}',
            r"bad\.jsonl:2: max_turns: expected `int`, got `str`",
        ),
        (
            b'{"target_word":"a","max_turns":5,"history":[{"role":"referee","content":""}]}',
            r"bad\.jsonl:2: utterance 1 has the role 'referee'; the roles are attacker and defender",
        ),
        (
            b'{"target_word":"a","max_turns":5,"history":[],"schema_version":99}',
            r"bad\.jsonl:2: schema_version 99 is newer",
        ),
        (
            b'{"game":"g","task":{"id":"t"},"history":[],"schema_version":99}',
            r"bad\.jsonl:2: schema_version 99 is newer",
        ),
        (
            b'{"task":{"id":"t","data":{"max_turns":5}},"history":[]}',
            r"bad\.jsonl:2: object missing required field `target_word`",
        ),
        (b'{"game":"g","task":"t","history":[]}', r"bad\.jsonl:2: task: expected `object`, got `str`"),
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


GAME = {"target_word": "river", "max_turns": 5, "history": [{"role": "attacker", "content": "Hello."}]}


def test_two_games_of_one_id_name_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "games"
    rows = [{**GAME, "id": "a"}, GAME, GAME, {**GAME, "id": "b"}, {**GAME, "id": "a"}]
    for text, first, second in (
        ("\n\n".join(map(json.dumps, rows)), f"{path}:1", f"{path}:9"),
        (json.dumps(rows), f"{path}: row 1", f"{path}: row 5"),
    ):
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            list(read_episodes(path))
        assert (
            str(caught.value)
            == f"{second}: the game 'a' occurs twice, first at {first}; keep one, or give one another id"
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "x" * 20_001}, "an id is longer than 20,000 characters"),
        ({"target_word": "x" * 201}, "target_word has 201 characters; the longest word may have 200"),
        (
            {"history": [{"role": "attacker", "content": "r." * 50_001}]},
            "utterance 1 has 100,002 characters; the longest may have 100,000",
        ),
        (
            {"history": [{"role": "attacker", "content": ""}] * 10_001},
            "10,001 utterances; no game has more than 10,000",
        ),
    ],
)
@pytest.mark.parametrize("upstream", [True, False])
def test_what_no_game_has_is_refused_by_its_length(
    tmp_path: Path, fields: dict[str, object], message: str, upstream: bool
) -> None:
    row = {**GAME, **fields}
    if not upstream:
        word = row.pop("target_word")
        row["task"] = {"id": "river", "data": {"target_word": word, "max_turns": row.pop("max_turns")}}
    path = tmp_path / "games.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError) as caught:
        list(read_episodes(path))
    assert str(caught.value).startswith(f"{path}:1: {message}")


@pytest.mark.parametrize("rows", [json.dumps([GAME, GAME]), f"{json.dumps(GAME)}\n{json.dumps(GAME)}"])
def test_a_byte_order_mark_is_dropped(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "games"
    path.write_text(rows, encoding="utf-8-sig")
    assert len(list(read_episodes(path))) == 2


def test_a_torn_last_row_is_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "games.jsonl"
    write_rows(path, [Episode(id=name, task=task_of("river"), history=()) for name in "ab"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [game.id for game in read_episodes(path, torn_ok=True)] == ["a"]
    with pytest.raises(DataError, match=f"^{path}:2: not JSON: it ends in the middle of a value$"):
        list(read_episodes(path))
    path.write_bytes(whole + json.dumps(GAME).encode()[:-1] + b"x")
    with pytest.raises(DataError, match=f"^{path}:3: not JSON"):
        list(read_episodes(path, torn_ok=True))


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


@pytest.fixture
def described(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the readers log, whatever handlers commands of other tests have set."""
    monkeypatch.setattr(logging.getLogger("spag"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("spag"), "handlers", [])
    return caplog


def test_empty_utterances_are_left_out_and_empty_instruction_data_stays(
    tmp_path: Path, described: pytest.LogCaptureFixture
) -> None:
    # as upstream's assign_rewards.py writes them: the target is stripped and may be empty; SFT rows carry a type and no
    # role
    path = tmp_path / "train_spag_data.json"
    fields = {"reward": 0.5, "weight": 0.543, "role": "attacker"}
    rows: list[dict[str, object]] = [
        {"query": f"q{n}", "target": target, **fields} for n, target in enumerate(["", "Hi", " \n", "Ho"])
    ]
    rows += [
        {"prompt": "p", "target": "a", "type": "sft", "weight": 1.0},
        {"prompt": "p", "answer": "", "type": "sft", "weight": 1.0},
    ]
    path.write_text(json.dumps(rows, indent=2))
    assert [(s.prompt, s.completion, s.type, s.role) for s in read_samples(path)] == [
        ("q1", "Hi", SampleType.RL, "attacker"),
        ("q3", "Ho", SampleType.RL, "attacker"),
        ("p", "a", SampleType.SFT, None),
        ("p", "", SampleType.SFT, None),  # upstream trains its end token
    ]
    assert [record.getMessage() for record in described.records] == [
        f"{path}: skipped 2 of 6 rows with an empty completion: nothing to train on"
    ]
    described.clear()
    path.write_text(json.dumps(rows[1:2]))
    assert len(list(read_samples(path))) == 1
    assert not described.records


def test_of_two_names_for_one_field_upstreams_first_choice_counts(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    row = {"query": "q", "prompt": "p", "target": "t", "answer": "a"}
    path.write_text(json.dumps([row, dict(reversed(row.items()))]))
    assert [(s.prompt, s.completion) for s in read_samples(path)] == [("q", "t")] * 2


ALPACA = [
    {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    {"instruction": "Say {hi}.\n", "input": "", "output": " hi\n"},
    {"instruction": "Nothing", "input": "", "output": " "},
]
# word for word the two prompts of Stanford's page of the data, which end where the output begins
PROMPTS = [
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that "
    "appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:",
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nSay {hi}.\n\n\n### Response:",
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nNothing\n\n### Response:",
]


@pytest.mark.parametrize("lines", [False, True])
def test_alpaca_rows_become_stanfords_prompts(tmp_path: Path, lines: bool, described: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "alpaca.json"
    path.write_text("\n".join(map(json.dumps, ALPACA)) if lines else json.dumps(ALPACA))
    wanted = [
        TrainingSample(prompt=p, completion=c, type=SampleType.SFT)
        for p, c in zip(PROMPTS, ["3", " hi\n", " "], strict=True)
    ]
    assert read_sft(path, None, seed=0) == wanted
    assert list(read_samples(path)) == wanted  # a file with instructions is known wherever samples are read
    assert not described.records
    assert read_sft(path, 1, seed=3) == read_sft(path, 1, seed=3)
    assert len(read_sft(path, 1, seed=3)) == 1


def test_sft_rows_with_a_prompt_of_their_own_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "alpaca_train.json"  # as upstream's page of data asks: converted, with what it was converted from
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3", "prompt": "Add 1 and 2.", "target": "three"}
    path.write_text(json.dumps([row, {"query": "q", "target": "t", "reward": 0.5, "weight": 0.25, "role": "defender"}]))
    assert read_sft(path, None, seed=0) == [
        TrainingSample(prompt="Add 1 and 2.", completion="three", type=SampleType.SFT),
        TrainingSample(prompt="q", completion="t", reward=0.5, weight=0.25, type=SampleType.SFT),
    ]


def test_the_real_alpaca_reads(described: pytest.LogCaptureFixture) -> None:
    if not REAL_ALPACA.is_file():
        pytest.skip(f"there is no {REAL_ALPACA}")
    rows = json.loads(REAL_ALPACA.read_text())
    samples = read_sft(REAL_ALPACA, None, seed=0)
    assert len(samples) == len(rows) == 9229
    assert sum(not sample.completion.strip() for sample in samples) == 4  # their end token is trained, as upstream
    assert not described.records
    assert sum("### Input:\n" in sample.prompt for sample in samples) == sum(bool(r["input"]) for r in rows)
    assert all(sample.prompt.endswith("\n\n### Response:") for sample in samples)


def test_alpaca_faults_name_the_row(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.json"
    path.write_text('[{"instruction": 5, "output": "x"}]')
    with pytest.raises(DataError, match="row 1: instruction, input and output must be text"):
        read_sft(path, None, seed=0)
    path.write_text('[{"instruction": "Add.", "output": "3"}, {"instruction": "Add.", "response": "3"}]')
    with pytest.raises(
        DataError, match="row 2: instruction, input and output must be text"
    ):  # not left out as if it were empty
        read_sft(path, None, seed=0)
