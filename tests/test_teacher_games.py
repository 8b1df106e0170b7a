"""The shipped teacher play: right by the judge, varied, natural in length, written without a template."""

import re
from collections import Counter

import pytest

from spag.core.episodes import Episode, read_episodes
from spag.games.taboo.judge.judge import JudgeMode, judge_episode
from spag.games.taboo.types import Outcome, Role
from spag.runs.stages import teacher_episodes, teacher_path

GAMES = list(read_episodes(teacher_path()))
FORM = re.compile(r"I know the word! It is `[^`]+`!")


def grams(game: Episode, n: int) -> set[tuple[str, ...]]:
    """The n-grams of all lines but announcements, whose form is fixed."""
    lines = [re.findall(r"[a-z']+", said.content.lower()) for said in game.history if not FORM.search(said.content)]
    return {tuple(words[i : i + n]) for words in lines for i in range(len(words) - n + 1)}


def test_there_are_enough_games_on_different_words() -> None:
    assert len(GAMES) >= 400
    assert len({game.target_word for game in GAMES}) == len(GAMES)
    assert len({game.id for game in GAMES}) == len(GAMES)


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.target_word)
def test_every_game_is_decided_at_its_last_line(game: Episode) -> None:
    verdict = judge_episode(game)
    assert verdict.outcome in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS), verdict.reason
    assert verdict.length == len(game.history)
    assert (verdict.outcome, verdict.reason) == (game.outcome, game.reason)
    assert [said.role for said in game.history] == [(Role.ATTACKER, Role.DEFENDER)[i % 2] for i in range(len(game.history))]
    assert all("know the word" not in said.content or FORM.fullmatch(said.content) for said in game.history)
    assert all(8 <= len(said.content) <= 300 and "\n" not in said.content for said in game.history)


def test_the_mix_is_as_asked() -> None:
    wrong = [g for g in GAMES if g.outcome is Outcome.ATTACKER_WINS and FORM.search(g.history[-1].content)]
    induced = [g for g in GAMES if g.outcome is Outcome.ATTACKER_WINS and g not in wrong]
    shares = [len(part) / len(GAMES) for part in (induced, wrong)]
    assert 0.41 <= shares[0] <= 0.49
    assert 0.07 <= shares[1] <= 0.14
    turns = Counter(len(game.history) // 2 for game in GAMES)
    assert set(turns) == {1, 2, 3, 4, 5}
    assert max(turns.values()) < 0.4 * len(GAMES)


def test_openings_are_distinct() -> None:
    openings = Counter(" ".join(game.history[0].content.lower().split()[:3]) for game in GAMES)
    assert len(openings) > 0.8 * len(GAMES)
    assert max(openings.values()) <= 6


def test_games_share_little_wording() -> None:
    """Template-made play shares most of its 4-grams with other games; here a typical game shares next to none."""
    seen = Counter(gram for game in GAMES for gram in grams(game, 4))
    shares = sorted(sum(seen[gram] > 1 for gram in grams(game, 4)) / max(len(grams(game, 4)), 1) for game in GAMES)
    assert shares[len(shares) // 2] < 0.10
    assert shares[int(0.95 * len(shares))] < 0.35


def test_both_judging_modes_agree_on_most_games() -> None:
    same = sum(judge_episode(game, JudgeMode.PAPER).outcome is game.outcome for game in GAMES)
    assert same > 0.9 * len(GAMES)


def test_a_limit_draws_by_seed() -> None:
    assert [g.id for g in teacher_episodes(["teacher"], 5, seed=1)] == [g.id for g in teacher_episodes(["teacher"], 5, seed=1)]
    assert [g.id for g in teacher_episodes(["teacher"], 5, seed=1)] != [g.id for g in teacher_episodes(["teacher"], 5, seed=2)]
