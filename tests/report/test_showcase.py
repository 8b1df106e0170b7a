"""Which games are shown, and in which order."""

from run_fixtures import game, selfplay_games

from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.bot import BotEngine
from spag.games.registry import get
from spag.report.showcase import MOST, pick_games
from spag.rollout.runner import Player, game_specs, play
from taboo_games import TABOO


def test_the_best_first_whatever_the_order() -> None:
    games = selfplay_games()
    best = pick_games(games, TABOO)
    # river took 4 utterances; of the two on bread, the wordier stays; the loop of piano, the wrong guess of garden, the
    # leak of cat and the tie of window are no merit
    names = ["river-0", "bread-0", "piano-0", "garden-0", "window-0", "cat-0"]
    assert [episode.id for episode, _ in best] == names
    assert pick_games(reversed(games), TABOO) == best


def test_no_more_than_six_and_the_longest_first() -> None:
    talk = ["One thing or another?", "Perhaps so.", "Then what?", "Who knows.", "And then?"]
    games = [
        game(word, *talk[: 2 * turns - 1], f"I know the word! It is `{word}`!")
        for turns, word in enumerate(("river", "bread"), 1)
    ]
    games += [game(word, *talk, f"Maybe some {word}.") for word in ("piano", "cat", "garden", "window", "house")]
    names = ["cat-0", "garden-0", "house-0", "piano-0", "window-0", "bread-0"]  # equally long: by id
    assert [episode.id for episode, _ in pick_games(games, TABOO)] == names and len(names) == MOST


def test_what_is_said_after_the_end_is_left_out() -> None:
    [(episode, explanation)] = pick_games([game("river", "The river!", "Oh.", "And on it goes, and on.")], TABOO)
    assert [said.content for said in episode.history] == ["The river!"] and explanation.span == (4, 9)


def test_another_game_has_its_own_signs() -> None:
    kuhn = get("kuhn_poker")
    specs = game_specs(kuhn.tasks(Split.TRAIN, 12, 0), 1, 0)
    clumsy = BotEngine(lambda seen, rng: rng.choice(["[check]", "[bet]", "[fold]", "[call]", "My card is good."]))
    players = dict.fromkeys(kuhn.roles, Player(clumsy, "clumsy", SamplingConfig()))
    faults = [explained.outcome.fault for _, explained in pick_games(play(specs, players, game=kuhn), kuhn)]
    assert faults[0] is None and faults[-1] is not None and faults == sorted(faults, key=bool)
