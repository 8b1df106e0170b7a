"""What tables, plots, report and page show of Adversarial Taboo: outcomes with labels and colors, figures of play with their warnings."""

from collections.abc import Mapping

from spag.core.types import Outcome as ShownOutcome
from spag.games.base import Figure, outcome_map
from spag.games.taboo.types import Outcome, Role

OUTCOMES = outcome_map(
    ShownOutcome(
        Outcome.ATTACKER_WINS,
        "attacker wins",
        "#d08a4d",
        winners=(Role.ATTACKER,),
        rule="The attacker wins when the defender says the word unawares, or guesses another one.",
    ),
    ShownOutcome(
        Outcome.DEFENDER_WINS,
        "defender wins",
        "#3f9599",
        winners=(Role.DEFENDER,),
        rule="A defender who announces the right word wins.",
    ),
    ShownOutcome(
        Outcome.ATTACKER_VIOLATION,
        "attacker breaks a rule",
        "#cc667e",
        fault=Role.ATTACKER,
        rule="The attacker may neither say the word nor announce a guess. Nobody wins such a game.",
    ),
    ShownOutcome(Outcome.TIE, "tie", "#a3a9b6", rule="When every turn is played and nothing was decided, nobody wins."),
)

FIGURES = (
    Figure("induced", "attacker wins by luring"),
    Figure(
        "wrong_guess", "attacker wins by a wrong guess", limit=0.75, warning="of games end with a wrong guess, so attackers need not lure"
    ),
    Figure(
        "first_wrong_guess",
        "… in the defender's first utterance",
        limit=0.5,
        warning="of games end with a wrong guess in the defender's first utterance",
    ),
    Figure(
        "hidden_leaks",
        "leaks only strict judging sees",
        limit=0.05,
        warning="of games leak the word in a way that only strict judging sees",
    ),
    Figure("guess", "announces a guess", role=Role.DEFENDER),
    Figure("guessed_right", "of these right", role=Role.DEFENDER, of="guess"),
)

ROLE_HELP: Mapping[str, str] = {
    Role.ATTACKER: "You know a word. Talk so that the other player says it without noticing. Never say it yourself.",
    Role.DEFENDER: "The other player knows a word and tries to make you say it. Find it out and announce: I know the word! It is …",
}
