"""Adversarial Taboo in German, French and Spanish: the strict judge, words, prompts, and what is refused."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from spag.cli import main
from spag.core.errors import ConfigError
from spag.core.types import Split, Task, Utterance
from spag.games import get
from spag.games.taboo.judge import JudgeMode, judge_utterance
from spag.games.taboo.types import Role, TabooOutcome

# language: target: (what the defender says, how the game ends; None: it goes on)
WON, LOST = TabooOutcome.DEFENDER_WINS, TabooOutcome.ATTACKER_WINS
CASES = {
    "de": {
        "Fluss": [
            ("Ich kenne das Wort! Es ist `Fluss`!", WON),
            ("Ich kenne das Wort! Es ist der Fluß.", WON),
            ("Ich weiß das Wort: Fluss", WON),
            ("Ich kenne das Wort! Es ist der „Fluss“.", WON),
            ("Ich kenne das Wort! Es ist ein `See`.", LOST),
            ("Ich kenne das Wort! Ist es Fluss?", WON),
            ("Ich kenne jetzt das Zielwort. Es lautet „Flüsse“.", WON),
            ("Ich glaube, ich weiß, welches Wort es ist: Fluss!", WON),
            ("Ich weiß, was das Wort ist: Fluss.", WON),
            ("Ich weiß jetzt, was das Wort ist: Fluss.", WON),
            ("Ich weiß jetzt, welches Wort es ist! Es ist Fluss!", WON),
            ("Ich weiß nun, welches Wort gesucht ist: Fluss", WON),
            ("Ich weiß, welches Wort du meinst: Fluss!", WON),
            ("Ich weiß, welches Wort du meinst: See!", LOST),
            ("Ich weiß, welches Wort du suchst, mein Freund.", None),
            ("Ich kenne das Lösungswort! Die richtige Antwort ist Fluss.", WON),
            ("Ich kenne das Wort! Die richtige Antwort ist See.", LOST),
            ("Ich kenne das Wort, also überleg!", None),
            ("Ich kenne das Wort. Rate!", None),
            ("Ich kenne das Wort! Es muss Fluss sein!", WON),
            ("Ich habe das Wort gefunden! Es ist Fluss.", WON),
            ("Ich kenne das Wort! Fluss!", WON),
            ("Das Wort ist Fluss.", WON),
            ("Ich kenne das Wort! Es ist nicht See, sondern Fluss.", WON),
            ("Jetzt weiß ich das Wort! Es ist Fluss!", WON),
            ("Nun kenne ich das Wort: Fluss", WON),
            ("Ich kenne das Wort! Es handelt sich um einen Fluss.", WON),
            ("Ich kenne das Wort! Es ist einfach Fluss!", WON),
            ("Ich kenne das Wort! Es ist einfach ein See!", LOST),
            ("Ich weiß es! Das Wort ist Fluss.", WON),
            ("Ich weiß es! Das Wort ist See.", LOST),
            ("Jetzt hab ich's! Das Wort ist Fluss.", WON),
            ("Ich weiß! Das Wort ist See.", LOST),
            ("Ich weiß. Das Wort ist kompliziert.", None),
            ("Ich weiß es nicht! Das Wort ist kompliziert.", None),
            ("Alles, was ich weiß: Das Wort ist kurz.", None),
            ("So viel ich weiß: Das Wort ist kurz.", None),
            ("Soweit ich weiß: Das Wort ist kurz.", None),
            ("Ich weiß: Das Wort ist See.", LOST),
            ("Meinen Koffer? Ich habe es. Das Wort ist selten.", None),
            ("Ich habe es! Das Wort ist Fluss.", WON),
            ("Ich habe es: Das Wort ist See.", LOST),
            ("Jetzt weiß ich das Wort! Es ist der See.", LOST),
            ("Jetzt kenne ich das Wort!", None),
            ("Woher kenne ich das Wort? Ist es alt?", None),
            ("Ich kenne das Wort! Es ist `See`!", LOST),
            ("Ich kenne das Wort! Es ist das Meer.", LOST),
            ("Ich kenne das Wort! Könnte es der Bach sein?", LOST),
            ("Ich weiß das Wort: See", LOST),
            ("Ich kenne das Wort! Es ist Flussbett.", LOST),
            ("Viele Flüsse führen ins Meer.", LOST),
            ("Am Ufer des Flusses saßen wir.", LOST),
            ("Wir badeten in den Flüssen.", LOST),
            ("Alle Fluesse sind tief.", LOST),
            ("Ein F-l-u-s-s!", LOST),
            ("Der Fl\u200buss.", LOST),
            ("Ich kenne das Wort nicht. Ist es Fluss?", LOST),
            ("Ich kenne das Wort! Es ist nicht Fluss.", LOST),
            ("Ich kenne das Wort, aber ich sage es nicht.", None),
            ("Ich kenne das Wort, mein Freund.", None),
            ("Ich kenne das Wort jetzt!", None),
            ("Kenne ich das Wort?", None),
            ("Wenn ich das Wort kenne, sage ich es.", None),
            ("Flüssig ist das Wasser, und der Einfluss ist groß.", None),
            ("Ein Bach, ein See und das Meer.", None),
        ],
        "einfach": [
            ("Ich kenne das Wort! Es ist einfach!", WON),
            ("Ich kenne das Wort! Es ist einfach, oder?", WON),
        ],
        "schön": [
            ("Das ist schon alles.", None),  # the accent makes another word
            ("Das war schoen.", LOST),
            ("Die schönsten Tage.", LOST),
            ("Viel schöner!", LOST),
        ],
        "Fuß": [
            ("Meine Füße tun weh.", LOST),
            ("Zwei Fuesse.", LOST),
            ("Ich kenne das Wort! Es ist Füße!", WON),
            ("Der Fluss.", None),
        ],
        "groß": [("Eine Größe.", None), ("Das größte Haus.", LOST)],
        "schließen": [("Wir schlossen es.", LOST), ("Er schließt ab.", LOST)],
        "gehen": [("Wir gingen heim.", LOST), ("Er ist gegangen.", LOST), ("Du gehst ja.", LOST), ("Wir kamen.", None)],
        "Haus": [("In den Häusern.", LOST), ("Das Hausboot.", None), ("Ich kenne das Wort! Es ist Häuser!", WON)],
    },
    "fr": {
        "rivière": [
            ("Je connais le mot ! C'est `rivière` !", WON),
            ("Je connais le mot ! C'est la rivière.", WON),
            ("Je connais le mot : rivière", WON),
            ("Je connais le mot ! C'est la « rivière ».", WON),
            ("Je connais le mot ! C'est l'`océan`.", LOST),
            ("Je connais le mot ! Est-ce rivière ?", WON),
            ("J'ai trouvé le mot ! Le mot est « rivière ».", WON),
            ("Je crois que j'ai trouvé le mot. C'est riviere !", WON),
            ("Je sais quel est le mot : rivières.", WON),
            ("Je connais le mot ! Ce doit être une rivière.", WON),
            ("Je connais le mot ! Rivière !", WON),
            ("Je connais le mot ! La bonne réponse est rivière.", WON),
            ("Je connais le mot ! La bonne réponse est lac.", LOST),
            ("Je connais le mot. Devine !", None),
            ("Je connais le mot, alors réfléchis !", None),
            ("Ah, je vois. Le mot est rivière !", WON),
            ("Le mot est lac ?", None),
            ("Je connais le mot ! Il s'agit d'une rivière !", WON),
            ("Je connais le mot ! Il s'agit de la rivière !", WON),
            ("Je connais le mot ! Il s'agit du mot « rivière » !", WON),
            ("Je connais le mot ! Il s'agit d'un lac !", LOST),
            ("Je connais le mot ! Il s'agit du mot « lac » !", LOST),
            ("Je connais le mot ! Il s'agit de ne pas le dire.", None),
            ("Je connais le mot ! Il s'agit, bien sûr, de la rivière.", WON),
            ("Je connais le mot ! Il s'agit bien sûr de la rivière.", WON),
            ("Je connais le mot ! Il s'agit en fait de la rivière.", WON),
            ("Je connais le mot ! Il s'agit tout simplement de la rivière.", WON),
            ("Je connais le mot ! Il s'agit tout simplement du lac.", LOST),
            ("Je connais le mot ! Il s'agit du cours d'eau : la rivière.", WON),
            ("Je connais le mot ! Il s'agit du cours d'eau : le lac.", LOST),
            ("Je connais le mot ! Il s'agit de la rivière : le cours d'eau.", WON),
            ("Je connais le mot ! Il s'agit du lac : la rivière.", LOST),
            ("Je sais ! Le mot est rivière.", WON),
            ("Je sais ! Le mot est lac.", LOST),
            ("J'ai trouvé. Le mot est rivière.", WON),
            ("Ça y est, le mot est lac.", LOST),
            ("Je sais, le mot est compliqué.", None),
            ("Je ne sais pas ! Le mot est compliqué.", None),
            ("Voici ce que je sais : le mot est court.", None),
            ("Voilà ce que je sais : le mot est masculin.", None),
            ("Ce que j'ai trouvé : le mot est féminin.", None),
            ("La seule chose que je sais : le mot est court.", None),
            ("Je crois que je sais : le mot est rivière.", WON),
            ("Je connais le mot ! C'est `lac` !", LOST),
            ("Je connais le mot ! Est-ce le lac ?", LOST),
            ("Je connais le mot : lac", LOST),
            ("Des rivières et des lacs.", LOST),
            ("Une RIVIÈRE.", LOST),
            ("Des rivieres partout.", LOST),
            ("r-i-v-i-è-r-e", LOST),
            ("Je ne connais pas le mot. Est-ce rivière ?", LOST),
            ("Je connais le mot ! Ce n'est pas rivière.", LOST),
            ("Je connais le mot, mais je ne le dirai pas.", None),
            ("Je connais le mot, mon ami.", None),
            ("Je connais le mot maintenant !", None),
            ("Si je connais le mot, je le dis.", None),
            ("Je connais le mot pour cela en anglais.", None),
            ("Un fleuve, un lac, la rive.", None),
        ],
        "eau": [
            ("Je connais le mot ! C'est l'`eau` !", WON),
            ("Je connais le mot ! Il s'agit de l'« eau » !", WON),
            ("Je connais le mot ! Il s'agit d'eau !", WON),
            ("J'aime l'eau fraîche.", LOST),
            ("Les eaux montent.", LOST),
            ("Un beau seau.", None),
        ],
        "tempête": [  # its plural is also a form of a verb
            ("Deux tempêtes.", LOST),
            ("Je connais le mot ! C'est les tempêtes !", WON),
        ],
        "mai": [("Oui, mais où ?", None)],
        "mètre": [("Il m'aide beaucoup.", None), ("Deux metres.", LOST)],
        "avoir": [("Il m'a vu.", LOST)],
        "pré": [("J'habite près de la gare.", None), ("Un pre vert.", LOST), ("Les prés.", LOST)],
        "grec": [("J'ai visité la Grèce.", None)],
        "franc": [("J'habite en France.", None)],
        "école": [("Les ecoles ferment.", LOST)],
        "cheval": [("Deux chevaux blancs.", LOST), ("Je connais le mot ! C'est un cheval !", WON)],
        "lame": [("Il a l'âme en peine.", None), ("Les lames brillent.", LOST)],
        "manger": [("Nous mangeons.", LOST), ("Il a mangé.", LOST), ("Il va changer.", None)],
    },
    "es": {
        "río": [
            ("¡Conozco la palabra! ¡Es `río`!", WON),
            ("Conozco la palabra. Es el río.", WON),
            ("Conozco la palabra: río", WON),
            ("Conozco la palabra: ¡es río!", WON),
            ("Conozco la palabra — ¡Es «río»!", WON),
            ("Conozco la palabra: creo que es río", WON),
            ("Conozco la palabra: ¡es lago!", LOST),
            ("Conozco la palabra: ¡el lago!", LOST),
            ("¡Conozco la palabra! ¡Gracias!", None),
            ("Conozco la palabra. ¡Adivina!", None),
            ("Conozco la palabra ¿quieres una pista?", None),
            ("Conozco la palabra. ¿Jugamos?", None),
            ("¡Conozco la palabra! Es el `río`.", WON),
            ("¡Conozco la palabra! Es un `lago`.", LOST),
            ("¡Ya conozco la palabra! ¿Es río?", WON),
            ("¡Sé cuál es la palabra! Debe ser río.", WON),
            ("¡He encontrado la palabra! La palabra es «ríos».", WON),
            ("¡Conozco la palabra! ¡Río!", WON),
            ("¡Conozco la palabra! Se trata del río.", WON),
            ("¡Conozco la palabra! Se trata del lago.", LOST),
            ("¡Ya sé! La palabra es río.", WON),
            ("¡Ya lo sé! La palabra es lago.", LOST),
            ("¡Lo tengo! ¡La palabra es río!", WON),
            ("Lo tengo. La palabra es lago.", LOST),
            ("¡Lo tengo! ¡La palabra es lago!", LOST),
            ("Lo sé, la palabra es complicada.", None),
            ("¡No lo sé! La palabra es complicada.", None),
            ("Casi lo tengo. La palabra es corta.", None),
            ("Tampoco lo tengo. La palabra es rara.", None),
            ("Eso ya lo sé: la palabra es conocida.", None),
            ("Todo lo que ya sé: la palabra es femenina.", None),
            ("¡Creo que ya lo tengo! La palabra es río.", WON),
            ("Creo que lo tengo. La palabra es lago.", LOST),
            ("¡Conozco la palabra! ¡Es `lago`!", LOST),
            ("¡Conozco la palabra! ¿Es el lago?", LOST),
            ("Conozco la palabra: lago", LOST),
            ("Los ríos bajan llenos.", LOST),
            ("¡Qué RÍO!", LOST),
            ("No conozco la palabra. ¿Es río?", LOST),
            ("¡Conozco la palabra! No es río.", LOST),
            ("Conozco la palabra, pero no la diré.", None),
            ("Conozco la palabra, mi amigo.", None),
            ("¡Ahora conozco la palabra!", None),
            ("Si conozco la palabra, la digo.", None),
            ("Conozco la palabra para eso en inglés.", None),
            ("Un lago, el mar, la orilla.", None),
        ],
        "año": [("Es un mono, un ano, nada.", None), ("Hace dos años.", LOST)],
        "canción": [
            ("Otra cancion más.", LOST),
            ("Canciones de cuna.", LOST),
            ("¡Conozco la palabra! ¡Es cancion!", WON),
        ],
        "flor": [("¡Qué flores!", LOST), ("¡Conozco la palabra! ¡Es flores!", WON)],  # florar, for the dictionary
        "disfraz": [("Dos disfraces.", LOST)],
        "sol": [("Los soles.", LOST), ("Suele llover.", None)],
        "call": [("Las calles.", None)],
        "luz": [("Las luces de la calle.", LOST), ("Una cruz.", None)],
        "buscar": [("Quiero buscarlo.", LOST), ("¿Puedes buscarles algo?", LOST), ("Una busca.", None)],
        "levantar": [("Tenemos que levantarnos.", LOST)],
        "par": [("Una perla, una charla, el norte, la parte.", None)],
        "comer": [("Ayer comimos.", LOST), ("Comí pan.", LOST), ("Tomamos café.", None)],
    },
}
TABLE = [(code, word, *case) for code, words in CASES.items() for word, cases in words.items() for case in cases]


@pytest.mark.parametrize(("code", "word", "text", "expected"), TABLE)
def test_case(code: str, word: str, text: str, expected: TabooOutcome | None) -> None:
    ruling = judge_utterance(Role.DEFENDER, text, word, JudgeMode.STRICT, code)
    assert (ruling and ruling[0]) == expected, ruling
    if expected is not None:
        by_attacker = judge_utterance(Role.ATTACKER, text, word, JudgeMode.STRICT, code)
        assert by_attacker is not None and by_attacker[0] is TabooOutcome.ATTACKER_VIOLATION


def test_several_words_are_a_wrong_guess_of_the_defender_only() -> None:
    text = "Je connais le mot ! Il s'agit d'un cours d'eau."
    ruling = judge_utterance(Role.DEFENDER, text, "rivière", JudgeMode.STRICT, "fr")
    assert ruling is not None and ruling[0] is LOST
    assert judge_utterance(Role.ATTACKER, text, "rivière", JudgeMode.STRICT, "fr") is None


@pytest.mark.slow
@pytest.mark.parametrize("code", CASES)
def test_a_game_in_another_language(code: str) -> None:
    game = get("adversarial_taboo", language=code, top_words=2000)
    tasks = game.tasks(Split.TRAIN, 50, 0)
    assert len({task.id for task in tasks}) == 50
    right, form = next((word, text) for word, cases in CASES[code].items() for text, outcome in cases if outcome is WON)
    state = game.start(Task(right, {"target_word": right, "max_turns": 5}), 0)
    state = game.apply(state, Utterance(Role.ATTACKER, "..."))
    seen = game.observe(state, Role.DEFENDER)
    prompt = game.prompt(seen)
    assert right not in prompt and prompt.endswith("\n")
    drawn = {game.training_prompt(seen, random.Random(seed)) for seed in range(20)}
    assert prompt in drawn and len(drawn) == 2  # the paraphrases
    announcement = form.split("`")[0]
    assert announcement in prompt  # the prompt asks for what the judge reads
    state = game.apply(state, Utterance(Role.DEFENDER, form))
    assert game.result(state).outcome == WON
    assert game.explain(state.task, state.history, game.result(state)) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"language": "it"},
            r"game\.language: 'it' is not one of de, en, es, fr; to add it, write it\.yaml in .*languages",
        ),
        ({"language": "../de"}, r"game\.language: '\.\./de' is not one of"),
        (
            {"language": "de", "judge": "paper"},
            r"game\.judge: paper supports only English, not 'de'; set game\.judge=strict",
        ),
        ({"language": "fr", "words": "shipped"}, r"game\.words: shipped is English, not 'fr'; use frequency"),
    ],
)
def test_what_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get("adversarial_taboo", **settings)


FILES = {
    "de": (
        "Fluss",
        ["Wir badeten in den Flüssen.", "Ich kenne das Wort! Es ist der `Fluss`!", "Der Einfluss ist groß."],
    ),
    "fr": ("rivière", ["Dans les rivières.", "Je connais le mot ! C'est la `rivière` !", "J'aime le lac."]),
    "es": ("río", ["En los ríos.", "¡Conozco la palabra! ¡Es el `río`!", "Me gusta el lago."]),
}


def games_file(path: Path, code: str, *, recorded: bool) -> Path:
    """Write three games: a slip, a right guess, and a tie."""
    word, replies = FILES[code]
    rows = [
        {"history": [{"role": "attacker", "content": "Hm?"}, {"role": "defender", "content": reply}]}
        | {"target_word": word, "max_turns": 1, "game": "adversarial_taboo"}
        | ({"settings": {"language": code, "max_turns": 1, "judge": "strict"}} if recorded else {})
        for reply in replies
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def spag(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.stderr if result.exit_code else result.stdout


@pytest.mark.parametrize("code", FILES)
@pytest.mark.parametrize("recorded", [True, False])
def test_commands_judge_in_the_language_of_the_games(code: str, recorded: bool, tmp_path: Path) -> None:
    path, output = games_file(tmp_path / "games.jsonl", code, recorded=recorded), tmp_path / "samples.jsonl"
    ends = json.loads(spag("judge", path, "--json", *([] if recorded else ["--language", code])))["outcomes"]
    assert (ends["attacker_wins"], ends["defender_wins"], ends["tie"]) == (1, 1, 1)
    asked = [] if recorded else ["--set", f"game.language={code}"]
    found = json.loads(spag("rewards", path, "--json", "--output", output, *asked))
    assert found["outcomes"] == ends
    prompts = [json.loads(line)["prompt"] for line in output.read_text(encoding="utf-8").splitlines()]
    assert all({"de": "Wort", "fr": "mot", "es": "palabra"}[code] in prompt for prompt in prompts)


@pytest.mark.slow
def test_commands_refuse_a_language_in_one_line(tmp_path: Path) -> None:
    path = games_file(tmp_path / "games.jsonl", "de", recorded=True)
    for words in (("judge", path, "--language", "it"), ("words", "--language", "it")):
        assert spag(*words).startswith("error: game.language: 'it' is not one of de, en, es, fr; to add it")
    assert spag("judge", path, "--mode", "paper").startswith("error: game.judge: paper supports only English")
    assert spag("words", "--language", "de", "--top", 1000).splitlines()[0].istitle()  # nouns keep their capital
