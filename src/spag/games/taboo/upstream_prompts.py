"""The prompts of the paper's published code (Linear95/SPAG, ``utils.py``), rendered as it renders them, byte by byte.

The wording is not part of this project: ``spag import prompts`` reads it from the user's copy (``promptfile.py``). What
differs from our own prompts (``prompts.py``):

- Utterances stand as they were said, also where they have several lines, so a player can forge a line of the other.
- Play has its own instructions, which bring their line breaks; training has others, and draws everything again for each
utterance.
- A prompt ends with ``:`` or a space, not with a line break.

``tests/golden/upstream_prompts.json`` pins both renderings.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spag.core.errors import DataError
from spag.core.types import Observation
from spag.games.taboo.templates import by_role, check_instructions, check_rules, fields_of, rules_of
from spag.games.taboo.types import Role

FORMAT = "upstream"
"""The ``format`` of a prompt file with upstream's templates."""
DIALOG_PREFIXES = ("\n - ", "\n### ", "\n## ", "\n# ", "\n *** ", "\n **", "\n\n")
NAMES = (("Assistant", "Human"), ("Answer", "Question"), ("Response", "Query"), ("A", "Q"))
"""(player to move, other player); the roles themselves are the fifth pair."""
SYSTEM_PREFIXES = ("Rules", "Game Rule", "System")
COIN = 0.2
_FIELDS = ("format", "rules", "instructions", "player_instructions")
_FIRST_MOVE = "The game is just initialized."


class PromptType(StrEnum):
    """Training prompt layouts of the published code."""

    CHAT = "chat"
    CHAT_INVERSE = "chat_inverse"
    ALPACA = "alpaca"


@dataclass(frozen=True)
class UpstreamPrompts:
    """Upstream's templates. Raises ``DataError`` when one lacks a placeholder, or names one that it may not use.

    ``rules``: ``GAME_RULE_PROMPTS``, of which play uses the first; ``instructions``: ``INSTRUCT_PROMPTS``, for play;
    ``player_instructions``: ``PLAYER_INSTRUCT_PROMPTS``, for training.
    """

    rules: tuple[str, ...]
    instructions: Mapping[Role, str]
    player_instructions: Mapping[Role, str]

    def __post_init__(self) -> None:
        check_rules(self.rules)
        check_instructions("instructions", self.instructions)
        check_instructions("player_instructions", self.player_instructions)

    @staticmethod
    def parse(data: Any) -> "UpstreamPrompts":
        """Build a set from the JSON value of a prompt file. Raises ``DataError``."""
        fields = fields_of(data, _FIELDS)
        return UpstreamPrompts(
            rules_of(fields), by_role(fields, "instructions"), by_role(fields, "player_instructions")
        )

    def dump(self) -> dict[str, Any]:
        """Return the JSON value that ``parse`` reads back."""
        texts = {"instructions": self.instructions, "player_instructions": self.player_instructions}
        return {
            "format": FORMAT,
            "rules": list(self.rules),
            **{name: {str(role): text[role] for role in Role} for name, text in texts.items()},
        }


@dataclass(frozen=True, slots=True)
class Draws:
    """What upstream draws for one training prompt. The two coins, true with probability ``COIN``, matter in the layout
    ``alpaca`` only.

    ``next_player`` and ``other`` name the players; ``rules`` is the paraphrase, from 0; ``system_prefix_shown`` puts
    ``system_prefix`` before the rules; ``instruction_is_cue`` ends the prompt with the instruction, its last character
    replaced by a colon.
    """

    dialog_prefix: str
    next_player: str
    other: str
    prompt_type: PromptType
    system_prefix: str
    rules: int
    system_prefix_shown: bool = False
    instruction_is_cue: bool = False

    @staticmethod
    def draw(rng: random.Random, role: Role, paraphrases: int) -> "Draws":
        """Draw for ``role``, in upstream's order."""
        prefix = rng.choice(DIALOG_PREFIXES)
        next_player, other = rng.choice(((str(role), str(_other(role))), *NAMES))
        prompt_type = rng.choice(tuple(PromptType))
        system_prefix, rules = rng.choice(SYSTEM_PREFIXES), rng.randrange(paraphrases)
        coins = (rng.random() < COIN, rng.random() < COIN) if prompt_type is PromptType.ALPACA else (False, False)
        return Draws(prefix, next_player, other, prompt_type, system_prefix, rules, *coins)

    @staticmethod
    def parse(data: Mapping[str, Any]) -> "Draws":
        """Read draws with the keys of ``upstream_prompts.json``; ``below_0.2``, the coins, may be absent. Raises
        ``DataError``.
        """
        try:
            names, coins = data["names"], data.get("below_0.2", {})
            return Draws(
                dialog_prefix=data["dialog_prefix"],
                next_player=names["next_player"],
                other=names["other"],
                prompt_type=PromptType(data["prompt_type"]),
                system_prefix=data["system_prefix"],
                rules=data["rules"],
                system_prefix_shown=coins.get("system_prefix_shown", False),
                instruction_is_cue=coins.get("instruction_is_cue", False),
            )
        except KeyError as error:
            raise DataError(f"draws has no {error.args[0]!r}; give every draw of the prompt") from error
        except ValueError as error:
            raise DataError(f"draws: {error}; the types are {', '.join(PromptType)}") from error


def upstream_play_prompt(observation: Observation, prompts: UpstreamPrompts) -> str:
    """Return upstream's prompt of play: the first paraphrase, the history, the instruction with its cue."""
    rules, instruction = prompts.rules[0], prompts.instructions[Role(observation.role)]
    lines = "".join(f"\n  - {said.role}: {said.content}" for said in observation.history)
    talk = f"\n### Game History:{lines}" if lines else _FIRST_MOVE
    return f"{rules.format(**observation.facts)}{talk}{instruction.format(**observation.facts)}"


def upstream_training_prompt(observation: Observation, prompts: UpstreamPrompts, draws: Draws) -> str:
    """Return upstream's training prompt with ``draws``. Raises ``DataError`` for a paraphrase that ``prompts`` does not
    have.
    """
    if not 0 <= draws.rules < len(prompts.rules):
        raise DataError(f"draws: rules is {draws.rules}; the prompt file has paraphrases 0 to {len(prompts.rules) - 1}")
    role, prefix = Role(observation.role), f"\n{draws.dialog_prefix}"
    names = {role: draws.next_player, _other(role): draws.other}
    rules = prompts.rules[draws.rules].format(**observation.facts)
    instruction = prompts.player_instructions[role].format(**observation.facts)
    talk = "".join(f"{prefix}{names[Role(said.role)]}: {said.content}" for said in observation.history)
    start = "" if talk else f"{_FIRST_MOVE} "
    cue = f"{prefix}{draws.next_player}: "
    if draws.prompt_type is PromptType.ALPACA:
        head = f"{draws.system_prefix}: {rules}" if draws.system_prefix_shown else rules
        log = f"{prefix}Game History:{talk}\n\n" if talk else start
        return f"{head}{log}{instruction[:-1]}: " if draws.instruction_is_cue else f"{head}{log}{instruction}{cue}"
    system = f"{prefix}{draws.system_prefix}: {rules}\n\n{instruction}{start}"
    return f"{system}{talk}{cue}" if draws.prompt_type is PromptType.CHAT else f"{talk}{system}{cue}"


def _other(role: Role) -> Role:
    return Role.DEFENDER if role is Role.ATTACKER else Role.ATTACKER
