"""Which games are shown, and why."""

from collections.abc import Sequence

from run_fixtures import game, selfplay_games

from spag.games.taboo.prompts import PromptSet
from spag.report.showcase import Oddity, ShownGame, pick_games


def ids(games: Sequence[ShownGame]) -> list[str]:
    return [shown.episode.id for shown in games]


def test_best_and_strangest_whatever_the_order() -> None:
    prompts = PromptSet.default()
    games = selfplay_games()
    best, odd = pick_games(games, prompts)
    # river took 4 utterances; of bread's two games the wordier one; the wrong guess of garden and the loop of piano are no merit
    assert ids(best) == ["river-0", "bread-0"]
    assert [shown.label for shown in best] == [
        "the defender finds the word after 4 utterances",
        "the defender is lured into saying it after 2 utterances",
    ]
    assert ids(odd) == ["cat-0", "piano-0", "garden-0"]
    assert [shown.label for shown in odd] == [Oddity.HIDDEN_LEAK, "the same is said again (3 times)", Oddity.EARLY_GUESS]
    assert pick_games(reversed(games), prompts) == (best, odd)


def test_no_more_than_three_and_the_longest_first() -> None:
    talk = ["One thing or another?", "Perhaps so.", "Then what?", "Who knows.", "And then?"]
    games = [game(word, *talk[: 2 * turns - 1], f"I know the word! It is `{word}`!") for turns, word in enumerate(("river", "bread"), 1)]
    games += [game(word, *talk, f"Maybe some {word}.") for word in ("piano", "cat")]
    best, _ = pick_games(games, PromptSet.default())
    assert ids(best) == ["cat-0", "piano-0", "bread-0"]  # equally long: by id


def test_what_is_said_after_the_end_is_left_out() -> None:
    after = game("river", "The river!", "Oh.", "And on it goes, and on and on.")
    _, odd = pick_games([after], PromptSet.default())
    assert [said.content for said in odd[0].episode.history] == ["The river!"]
    assert odd[0].label == Oddity.AT_ONCE and odd[0].explanation.span == (4, 9)


def test_copied_rules_are_strange() -> None:
    words = PromptSet.default().rules[0].split("{")[0].split()[:12]
    _, odd = pick_games([game("river", " ".join(words), "Fine.")], PromptSet.default())
    assert [shown.label for shown in odd] == [Oddity.COPIED]
