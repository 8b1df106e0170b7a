"""Rewards against upstream's own (golden/rewards.json) and against arithmetic."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from spag.algorithms.credit import result_of
from spag.algorithms.imitation import Imitation, ImitationSettings
from spag.algorithms.spag import Spag, SpagSettings
from spag.algorithms.winners import (
    RewardSettings,
    RewardStats,
    assign_rewards,
    return_coefficients,
    role_weights,
)
from spag.core.episodes import Episode, PlayerInfo, SampleType
from spag.core.errors import ConfigError, DataError
from spag.core.types import Task, Utterance
from spag.games.registry import get
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.types import TabooOutcome
from spag.storage.episodes import read_episodes
from taboo_games import ROLES, episode_of

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "rewards.json").read_text())
WHITESPACE = json.loads((Path(__file__).parent.parent / "golden" / "rewards_whitespace.json").read_text())
GUESS = "I know the word! It is `river`!"


def episode(*texts: str, word: str = "river", name: str = "") -> Episode:
    return episode_of(word, *texts, id=name)


INDUCED = episode("Where do you swim?", "In a lake.", "And outdoors?", "In the river.", name="induced")
GUESSED = episode("It flows to the sea.", GUESS, name="guessed")
TIED = episode_of("river", "Hi", "Hello", max_turns=1, id="tied")
VIOLATED = episode("A river!", name="violated")


@pytest.mark.parametrize(
    ("recorded", "fault"),
    [
        ({"outcome": "banana"}, "outcome 'banana'"),
        ({"rewards": {}}, "rewards of nobody"),
        ({"length": -1}, "length -1"),
        ({"length": 9}, "length 9"),
    ],
)
def test_a_recorded_result_that_the_game_does_not_have_is_refused(recorded: dict[str, object], fault: str) -> None:
    game = get("adversarial_taboo")
    judged = {"outcome": "attacker_wins", "rewards": {"attacker": 1.0, "defender": -1.0}, "length": 4}
    assert result_of(replace(INDUCED, **judged), game).length == 4
    with pytest.raises(DataError, match=rf"game 'induced': its recorded result, {fault}, is none of adversarial_taboo"):
        result_of(replace(INDUCED, **{**judged, **recorded}), game)


NIM = Episode(
    task=Task("heap-6-0", {"stones": 6}),
    history=(Utterance("player_0", "[1]"), Utterance("player_1", "[5]")),
    id="six",
    game="nim",
    outcome="player_1_wins",
    rewards={"player_0": -1.0, "player_1": 1.0},
    length=2,
    settings={"take": 5},
)


def test_a_recorded_game_must_be_one_of_the_game_and_its_rules() -> None:
    with pytest.raises(DataError, match=r"game 'six' was played with take 5, not 3; set game\.take"):
        Imitation(ImitationSettings()).credit([NIM], get("nim"), None)
    assert [sample.completion for sample in Spag(SpagSettings()).credit([NIM], get("nim", take=5), None)] == ["[5]"]
    with pytest.raises(DataError, match="the game 'six': task 'x': stones is None"):
        result_of(replace(NIM, task=Task("x", {})), get("nim", take=5))


def test_golden_samples(tmp_path: Path) -> None:
    (tmp_path / "upstream.json").write_text(json.dumps([row["episode"] for row in GOLDEN["episodes"]]))
    samples = assign_rewards(read_episodes(tmp_path / "upstream.json"), GOLDEN["discount"], "paper")
    assert [(s.completion, s.role) for s in samples] == [(g["target"], g["role"]) for g in GOLDEN["samples"]]
    for sample, golden in zip(samples, GOLDEN["samples"], strict=True):
        assert sample.reward == pytest.approx(golden["reward"], rel=1e-12)
        assert sample.weight == pytest.approx(golden["weight"], rel=1e-12)


@pytest.mark.parametrize("judge", ["paper", "strict"])
@pytest.mark.parametrize("completions", ["text", "sampled"])
def test_golden_texts_are_stripped_and_empty_ones_left_out(tmp_path: Path, judge: str, completions: str) -> None:
    (tmp_path / "upstream.json").write_text(json.dumps(WHITESPACE["episodes"]))
    settings, stats = RewardSettings(discount=WHITESPACE["discount"], completions=completions), RewardStats()
    game = get("adversarial_taboo", judge=judge)
    samples = assign_rewards(read_episodes(tmp_path / "upstream.json"), settings=settings, game=game, stats=stats)
    expected = [
        (row["target"], row["role"], row["reward"], row["weight"]) for row in WHITESPACE["samples"] if row["target"]
    ]
    found = [(sample.completion, sample.role, sample.reward, sample.weight) for sample in samples]
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one[2:] for one in found] == [pytest.approx(one[2:], abs=1e-12) for one in expected]
    assert stats.empty_completions == len(WHITESPACE["samples"]) - len(expected) == 1


def test_coefficients_grow_by_one_over_discount_and_sum_to_one() -> None:
    # 1.25 : 1.5625 : 1.953125 -> divided by their sum 4.765625
    assert return_coefficients(3, 0.8) == pytest.approx([0.26229508, 0.32786885, 0.40983607])
    assert return_coefficients(2, 1.0) == [0.5, 0.5]
    assert return_coefficients(3, 1e-300) == [
        0.0,
        1e-300,
        1.0,
    ]  # shares 1e-600 : 1e-300 : 1, where (1/discount)**2 is no float
    assert sum(return_coefficients(20_000, 0.8)) == pytest.approx(1.0)


@pytest.mark.parametrize("discount", [1.25, 0.0, -1.0, math.nan])
def test_a_discount_that_would_pay_early_utterances_more_or_nothing_is_refused(discount: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        assign_rewards([INDUCED], discount)


def test_role_weights_balance_the_roles() -> None:
    # 3 decided games, 2 attacker wins: 3/(2*2) and 3/(2*1); each role then counts 1.5 in sum
    weights = role_weights({"attacker": 2, "defender": 1})
    assert weights == {"attacker": 0.75, "defender": 1.5}
    assert role_weights({"attacker": 4, "defender": 0}) == {"attacker": 0.5}
    # a replication's first self-play: 31,273 attacker and 2,700 defender wins -> 0.543 and 6.291
    paper = role_weights({"attacker": 31_273, "defender": 2_700})
    assert (round(paper["attacker"], 3), round(paper["defender"], 3)) == (0.543, 6.291)


def test_only_winners_are_trained_and_stats_tell() -> None:
    stats = RewardStats()
    samples = assign_rewards([INDUCED, GUESSED, TIED, VIOLATED], stats=stats)
    assert [(s.episode_id, s.role, s.turn, s.completion) for s in samples] == [
        ("induced", "attacker", 1, "Where do you swim?"),
        ("induced", "attacker", 2, "And outdoors?"),
        ("guessed", "defender", 1, GUESS),
    ]
    assert stats.outcomes == {
        TabooOutcome.ATTACKER_WINS: 1,
        TabooOutcome.DEFENDER_WINS: 1,
        TabooOutcome.TIE: 1,
        TabooOutcome.ATTACKER_VIOLATION: 1,
    }
    assert stats.samples == {"attacker": 2, "defender": 1}
    assert stats.role_weights == {"attacker": 1.0, "defender": 1.0}


def test_the_recorded_weights_are_those_of_the_samples_where_everyone_is_trained() -> None:
    stats = RewardStats()
    samples = assign_rewards([INDUCED, TIED], settings=RewardSettings(utterances="all"), stats=stats)
    assert {(one.role, one.weight) for one in samples} == {("attacker", 1.0), ("defender", 1.0)}
    assert stats.role_weights == {"attacker": 1.0, "defender": 1.0}  # by wins: 0.5 for the attacker alone


def test_what_follows_the_judged_end_is_dropped() -> None:
    long = episode("Where do you swim?", "In the river.", "Ha, got you.", "Oh no.")
    assert [s.completion for s in assign_rewards([long])] == ["Where do you swim?"]


def test_losers_and_ties_are_paid_when_asked() -> None:
    samples = assign_rewards([INDUCED, TIED], settings=RewardSettings(loser_reward=-1.0, tie_reward=-0.5))
    rewards = [(s.episode_id, s.role, round(s.reward, 6)) for s in samples]
    assert rewards == [
        ("induced", "attacker", 0.444444),
        ("induced", "attacker", 0.555556),
        ("induced", "defender", -0.444444),
        ("induced", "defender", -0.555556),
        ("tied", "attacker", -0.5),
        ("tied", "defender", -0.5),
    ]


def test_an_empty_utterance_keeps_its_share_but_is_not_trained() -> None:
    stats = RewardStats()
    (sample,) = assign_rewards([episode("", "What?", "Where do you swim?", "In the river.")], stats=stats)
    assert sample.reward == pytest.approx(0.5555555)
    assert stats.empty_completions == 1


def test_prompts_show_what_the_speaker_saw() -> None:
    said = [utterance.content for utterance in INDUCED.history]
    by_text = {
        sample.completion: sample for sample in assign_rewards([INDUCED], settings=RewardSettings(loser_reward=-1.0))
    }
    for at, text in enumerate(said):
        prompt = by_text[text].prompt
        assert [prompt.count(other) for other in said] == [1] * at + [0] * (4 - at)
        assert [prompt.index(other) for other in said[:at]] == sorted(prompt.index(other) for other in said[:at])
        assert ("river" in prompt) == (by_text[text].role == "attacker")


@pytest.mark.parametrize("template", ["random", "game", "play"])
def test_before_anything_is_said_a_prompt_tells_the_attackers_word_and_nothing_of_the_game(template: str) -> None:
    def first(word: str, *texts: str) -> str:
        games = [episode(*texts, word=word, name="a")]
        return assign_rewards(games, settings=RewardSettings(template=template))[0].prompt

    river = first("river", "Where do you swim?", "In a lake or river.")
    assert "river" in river
    assert first("river", "It is wet.", "A sea?", "No, and it flows.", "A river?") == river
    assert first("piano", "What do you play?", "A piano.") == river.replace("river", "piano")


def test_prompts_depend_on_seed_episode_and_turn_alone() -> None:
    alone = assign_rewards([GUESSED], settings=RewardSettings(seed=5))
    among = assign_rewards([INDUCED, GUESSED], settings=RewardSettings(seed=5))
    assert alone[0].prompt == among[-1].prompt
    drawn = {assign_rewards([GUESSED], settings=RewardSettings(seed=seed))[0].prompt for seed in range(20)}
    assert len(drawn) > 5


def test_play_template_is_the_prompt_of_play() -> None:
    game = RewardSettings(template="play", sample_type=SampleType.IMITATION)
    (sample,) = assign_rewards([GUESSED], settings=game)
    from spag.core.types import Observation

    assert sample.prompt == PromptSet.default().play(Observation("defender", GUESSED.history[:1], {"max_turns": 5}))
    assert sample.type is SampleType.IMITATION


def test_game_template_words_all_utterances_of_a_game_alike() -> None:
    said = [f"A thing number {n}." for n in range(9)]
    game = replace(
        episode(*said, "I know the word! It is `pear`!", word="lamp"), id="a"
    )  # a wrong guess: five attacker utterances
    paraphrases = [rules.format(max_turns=5) for rules in PromptSet.default().rules]
    for seed in range(10):
        prompts = [
            sample.prompt for sample in assign_rewards([game], settings=RewardSettings(template="game", seed=seed))
        ]
        assert len(prompts) == 5
        assert len({tuple(rules in query for rules in paraphrases) for query in prompts}) == 1
        assert (
            len({query.replace("\n".join(said), "").split("\n")[-2:][0] for query in prompts}) == 1
        )  # the same cue: layout and names
    worded = {
        assign_rewards([game], settings=RewardSettings(template="game", seed=seed))[0].prompt for seed in range(20)
    }
    assert len(worded) > 5


def played_by(game: Episode, attacker: str, defender: str) -> Episode:
    return replace(game, players={"attacker": PlayerInfo(attacker), "defender": PlayerInfo(defender)})


OPPOSED = [
    played_by(INDUCED, "now", "now"),
    played_by(GUESSED, "now", "now"),
    played_by(INDUCED, "now", "old"),  # the learner wins as attacker
    played_by(INDUCED, "old", "now"),  # the opponent wins as attacker
    played_by(GUESSED, "now", "old"),  # the opponent wins as defender
    played_by(TIED, "old", "now"),
]


def test_a_frozen_opponents_wins_are_neither_trained_nor_counted() -> None:
    stats = RewardStats()
    samples = assign_rewards(OPPOSED, settings=RewardSettings(learner="now"), stats=stats)
    # 3 games give samples: the learner attacks and wins 2, defends and wins 1: weights 3/(2*2) and 3/(2*1)
    assert stats.role_weights == {"attacker": 0.75, "defender": 1.5}
    assert [(s.episode_id, s.role, s.weight) for s in samples] == [
        *[("induced", "attacker", 0.75)] * 2,
        ("guessed", "defender", 1.5),
        *[("induced", "attacker", 0.75)] * 2,
    ]
    assert (stats.outcomes[TabooOutcome.ATTACKER_WINS], stats.outcomes[TabooOutcome.DEFENDER_WINS]) == (3, 2)
    assert assign_rewards(OPPOSED[3:], settings=RewardSettings(learner="now")) == []
    assert assign_rewards([INDUCED], settings=RewardSettings(learner="now")) == []  # nobody knows who played


@pytest.mark.parametrize(
    ("learner", "weights"),
    [
        ("now", {"questioner": 4 / 6, "answerer": 4 / 2}),  # the learner wins 3 games as questioner, 1 as answerer
        (None, {"questioner": 1.0, "answerer": 1.0}),  # each role wins 4 of 8 wins
    ],
)
def test_a_frozen_partners_win_is_not_counted(learner: str | None, weights: dict[str, float]) -> None:
    game, stats = get("guess_my_city"), RewardStats()
    said = zip(game.roles * 2, ("Is it large?", "Yes, very.", "Is it Paris?"), strict=False)
    won = Episode(task=game.custom_task("Paris"), history=tuple(Utterance(*one) for one in said), game=game.name)
    sides = [("now", "old")] * 3 + [("old", "now")]
    games = [
        replace(won, players={role: PlayerInfo(name) for role, name in zip(game.roles, names, strict=True)})
        for names in sides
    ]
    samples = assign_rewards(games, settings=RewardSettings(learner=learner), game=game, stats=stats)
    assert stats.role_weights == weights and stats.wins == {"questioner": 4, "answerer": 4}
    paid = {role: sum(one.reward * one.weight for one in samples if one.role == role) for role in game.roles}
    assert paid["questioner"] == pytest.approx(paid["answerer"])


def test_the_learner_is_paid_for_losing_and_for_ties_when_asked() -> None:
    samples = assign_rewards(OPPOSED[3:], settings=RewardSettings(learner="now", loser_reward=-1.0, tie_reward=-0.5))
    # one game lost to an attacker, one lost to a defender: both give samples, so both weights are 2/(2*1)
    assert [(s.episode_id, s.role, round(s.reward, 6), s.weight) for s in samples] == [
        ("induced", "defender", -0.444444, 1.0),
        ("induced", "defender", -0.555556, 1.0),
        ("guessed", "attacker", -1.0, 1.0),
        ("tied", "defender", -0.5, 1.0),
    ]


@pytest.mark.parametrize("role", ROLES)
def test_one_roles_samples_are_the_same_as_among_both(role: str) -> None:
    games = [INDUCED, INDUCED, GUESSED, TIED]
    both = assign_rewards(games, settings=RewardSettings(tie_reward=-0.5, loser_reward=-1.0))
    alone = assign_rewards(games, settings=RewardSettings(tie_reward=-0.5, loser_reward=-1.0, roles=role))
    assert alone == [sample for sample in both if sample.role == role]
    assert {sample.weight for sample in alone} == {0.75, 1.5, 1.0}  # 3 decided games, 2 and 1; ties 1


def test_paper_mode_differs_where_upstream_does() -> None:
    inside = episode("Which pets do you like?", "Any of that category.", word="cat")
    assert len(assign_rewards([inside], judge="paper")) == 1
    assert assign_rewards([inside], judge="strict") == []


def test_sampled_tokens_travel_with_the_sample_unless_text_is_asked_for() -> None:
    cut = replace(INDUCED.history[0], token_ids=(5, 6), logprobs=(-1.0, -2.0), finish_reason="length")
    game = replace(INDUCED, history=(cut, *INDUCED.history[1:]))
    first, second = assign_rewards([game])
    assert (first.completion_ids, first.truncated) == ((5, 6), True)
    assert (second.completion_ids, second.truncated) == (None, False)
    first, _ = assign_rewards([game], settings=RewardSettings(completions="text"))
    assert (first.completion_ids, first.truncated) == (None, False)
