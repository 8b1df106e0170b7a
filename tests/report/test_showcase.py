"""Which games are shown, and why."""

from collections.abc import Sequence

from run_fixtures import game, selfplay_games

from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.bot import BotEngine
from spag.games.registry import get
from spag.report.showcase import AT_ONCE, COPIED, ShownGame, pick_games
from spag.rollout.runner import Player, game_specs, play
from taboo_games import TABOO


def ids(games: Sequence[ShownGame]) -> list[str]:
    return [shown.episode.id for shown in games]


def test_best_and_strangest_whatever_the_order() -> None:
    games = selfplay_games()
    best, odd = pick_games(games, TABOO)
    # river took 4 utterances; of bread's two games the wordier one; the wrong guess of garden and the loop of piano are
    # no merit
    assert ids(best) == ["river-0", "bread-0"]
    assert [shown.label for shown in best] == ["defender wins after 4 utterances", "attacker wins after 2 utterances"]
    assert ids(odd) == ["cat-0", "piano-0", "garden-0"]
    assert [shown.label for shown in odd] == [
        "one of the games that leak the word in a way that only strict judging sees",
        "the same is said again (3 times)",
        "one of the games that end with a wrong guess in the defender's first utterance",
    ]
    assert pick_games(reversed(games), TABOO) == (best, odd)


def test_no_more_than_three_and_the_longest_first() -> None:
    talk = ["One thing or another?", "Perhaps so.", "Then what?", "Who knows.", "And then?"]
    games = [
        game(word, *talk[: 2 * turns - 1], f"I know the word! It is `{word}`!")
        for turns, word in enumerate(("river", "bread"), 1)
    ]
    games += [game(word, *talk, f"Maybe some {word}.") for word in ("piano", "cat")]
    best, _ = pick_games(games, TABOO)
    assert ids(best) == ["cat-0", "piano-0", "bread-0"]  # equally long: by id


def test_what_is_said_after_the_end_is_left_out() -> None:
    after = game("river", "The river!", "Oh.", "And on it goes, and on and on.")
    _, odd = pick_games([after], TABOO)
    assert [said.content for said in odd[0].episode.history] == ["The river!"]
    assert odd[0].label == AT_ONCE and odd[0].explanation.span == (4, 9)


def test_copied_rules_are_strange() -> None:
    words = TABOO.template_texts()[0].split("{")[0].split()[:12]
    _, odd = pick_games([game("river", " ".join(words), "Fine.")], TABOO)
    assert [shown.label for shown in odd] == [COPIED]


def test_another_game_shows_its_own_signs() -> None:
    kuhn = get("kuhn_poker")
    specs = game_specs(kuhn.tasks(Split.TRAIN, 12, 0), 1, 0)
    clumsy = BotEngine(lambda seen, rng: rng.choice(["[check]", "[bet]", "[fold]", "[call]", "My card is good."]))
    best, odd = pick_games(
        play(specs, dict.fromkeys(kuhn.roles, Player(clumsy, "clumsy", SamplingConfig())), game=kuhn), kuhn
    )
    assert best and all(
        shown.label.startswith(("player_0 wins the pot after", "player_1 wins the pot after")) for shown in best
    )
    assert odd[0].label == "one of the games that end with an illegal or unreadable move"
    assert kuhn.outcomes[odd[0].explanation.outcome.name].fault is not None
