"""The project's own prompt texts for Adversarial Taboo; the wording is ours, the rules are those of arXiv 2404.10642, section 3.1.

Short on purpose: every sample of training and every move of play carries one paraphrase, so each token here is paid for thousands of times.
The first paraphrase is the one used in play.
"""

RULES = (
    "Adversarial Taboo is a word game between an attacker and a defender. The attacker gets a secret target word that the "
    "defender does not know. They speak in turns, attacker first, at most {max_turns} times each. The attacker lures the "
    "defender into saying the target word unawares, but must never say it or announce a guess. The defender must find the "
    "word and announce it: I know the word! It is `WORD`! There is only one guess: if right, the defender wins; if wrong, "
    "the attacker wins. The attacker also wins if the defender says the target word without announcing it. Otherwise it is "
    "a tie.",
    "This is a game of words called Adversarial Taboo. One player, the attacker, holds a target word hidden from the other, "
    "the defender. The attacker opens and each player speaks up to {max_turns} times. The attacker may neither say the "
    "target word nor announce a guess; the aim is to lure the defender into saying it by accident, which wins the game. The "
    "defender aims to name it: a single guess, announced as I know the word! It is `WORD`! A correct guess wins for the "
    "defender, a wrong one for the attacker. Otherwise the game is tied.",
    "Play Adversarial Taboo. Roles: the attacker knows a target word, the defender does not. Order: attacker first, then by "
    "turns, no more than {max_turns} utterances a player. Attacker: get the defender to use the target word unawares; never "
    "use it yourself and never announce a guess. Defender: infer the word and announce it once, in these words: I know the "
    "word! It is `WORD`! Result: a right guess, the defender wins; a wrong guess, or the word used without a guess, the "
    "attacker wins; neither within the turns, a tie.",
    "Two players meet in Adversarial Taboo. A target word is shown to the attacker and kept from the defender. The attacker "
    "speaks first and they alternate for at most {max_turns} turns. If the defender uses the target word without meaning to "
    "guess it, the attacker has won, so the attacker chats about things around it, never saying the word and never "
    "announcing a guess. The defender has one guess, in the form I know the word! It is `WORD`! Guess right and the "
    "defender wins; guess wrong and the attacker wins. Running out of turns is a tie.",
    "Rules of Adversarial Taboo:\n"
    "1. Only the attacker knows the target word.\n"
    "2. The attacker starts; both speak in turns, {max_turns} times each at most.\n"
    "3. The attacker must not say the target word or announce a guess.\n"
    "4. The defender may guess once: I know the word! It is `WORD`!\n"
    "5. A right guess: the defender wins. A wrong guess: the attacker wins.\n"
    "6. The defender says the target word without guessing: the attacker wins.\n"
    "7. Nothing of this happens: a tie.",
    "In Adversarial Taboo a defender must be careful with every word. The attacker has been told a target word and, without "
    "ever saying it or announcing a guess, leads the conversation so that the defender lets it slip; then the attacker "
    "wins. The defender, who was told nothing, watches for hints and may claim once: I know the word! It is `WORD`! If the "
    "claim is true the defender wins, if it is false the attacker wins. The attacker begins, they take turns, and after "
    "{max_turns} turns each without a winner the game is a tie.",
    "You are taking part in Adversarial Taboo, a game in which a conversation hides a target word. The attacker knows that "
    "word and the defender does not. They talk in turns, {max_turns} turns at most, beginning with the attacker. The "
    "defender wins by working out the word and announcing it: I know the word! It is `WORD`! There is just one such guess, "
    "and if it is mistaken the attacker wins. The attacker wins as well when the defender speaks the word without "
    "announcing it. The attacker may not speak the word or announce a guess. Without a winner it is a tie.",
    "Adversarial Taboo pits an attacker against a defender. Secret: a target word known to the attacker alone. Length: up "
    "to {max_turns} turns, each one line of the attacker followed by one of the defender. How the attacker wins: the "
    "defender says the target word without announcing a guess, or guesses wrong. How the defender wins: one guess, and a "
    "right one, put as I know the word! It is `WORD`! What the attacker must not do: say the target word, or announce a "
    "guess. What if neither wins: a tie.",
)

ATTACKER_INSTRUCTION = (
    'You are the attacker. The target word is "{target_word}". Make the defender say it, and never say it yourself. '
    "Write one short sentence."
)

DEFENDER_INSTRUCTION = (
    "You are the defender. Answer the attacker with one short sentence. If you are sure of the target word, say instead: "
    "I know the word! It is `WORD`! (with your guess for WORD)."
)

HISTORY_HEADER = "\n\nThe conversation so far:\n"
HISTORY_LINE = "- {role}: {content}\n"
CUE = "{role} says:\n"

PLAYER_NAMES = (
    ("attacker", "defender"),
    ("Player 1", "Player 2"),
    ("Alice", "Bob"),
    ("Player A", "Player B"),
    ("Sam", "Kim"),
    ("Red", "Blue"),
)
"""(attacker, defender) names that training prompts may use; the first pair is that of play."""

NAMES_SENTENCE = "{attacker} is the attacker and {defender} is the defender."
