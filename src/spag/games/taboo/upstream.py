"""Prompts and rows of the paper's published code (Linear95/SPAG, ``utils.py``), rendered as it does, byte for byte.

The wording is not part of this project: ``spag import prompts`` reads it from the user's copy (``promptfile.py``). What
differs from our own prompts (``prompts.py``):

- Utterances are unchanged, even if they have several lines, so a player can forge the other's lines.
- Play has its own instructions, which contain their line breaks; training has others, and draws everything again for
  each utterance.
- A prompt ends with ``:`` or a space, not with a line break.

``tests/golden/upstream_prompts.json`` pins both renderings.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AliasPath, Field

from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.core.options import Section
from spag.core.types import Observation
from spag.games.taboo.templates import Instructions, Rules
from spag.games.taboo.types import Role

DIALOG_PREFIXES = ("\n - ", "\n### ", "\n## ", "\n# ", "\n *** ", "\n **", "\n\n")
NAMES = (("Assistant", "Human"), ("Answer", "Question"), ("Response", "Query"), ("A", "Q"))
"""(player to move, other player); the roles themselves are the fifth pair."""
SYSTEM_PREFIXES = ("Rules", "Game Rule", "System")
COIN = 0.2
_FIRST_MOVE = "The game is just initialized."


class PromptType(StrEnum):
    """Training prompt layouts of the published code."""

    CHAT = "chat"
    CHAT_INVERSE = "chat_inverse"
    ALPACA = "alpaca"


@dataclass(frozen=True, slots=True)
class Draws:
    """Upstream's random choices for a prompt in training. Booleans are true with probability ``COIN``, and only if
    ``prompt_type`` is ``alpaca``.

    ``next_player`` and ``other`` name the players; ``rules`` is the paraphrase, from 0; ``system_prefix_shown`` puts
    ``system_prefix`` before the rules; ``instruction_is_cue`` ends the prompt with the instruction, its last character
    replaced by a colon. They are validated with the keys of ``upstream_prompts.json``.
    """

    dialog_prefix: str
    next_player: Annotated[str, Field(validation_alias=AliasPath("names", "next_player"))]
    other: Annotated[str, Field(validation_alias=AliasPath("names", "other"))]
    prompt_type: PromptType
    system_prefix: str
    rules: int
    system_prefix_shown: Annotated[bool, Field(validation_alias=AliasPath("below_0.2", "system_prefix_shown"))] = False
    instruction_is_cue: Annotated[bool, Field(validation_alias=AliasPath("below_0.2", "instruction_is_cue"))] = False

    @staticmethod
    def draw(rng: random.Random, role: Role, paraphrases: int) -> "Draws":
        """Draw for ``role``, in upstream's order."""
        prefix = rng.choice(DIALOG_PREFIXES)
        next_player, other = rng.choice(((str(role), str(_other(role))), *NAMES))
        prompt_type = rng.choice(tuple(PromptType))
        system_prefix, rules = rng.choice(SYSTEM_PREFIXES), rng.randrange(paraphrases)
        coins = (rng.random() < COIN, rng.random() < COIN) if prompt_type is PromptType.ALPACA else (False, False)
        return Draws(prefix, next_player, other, prompt_type, system_prefix, rules, *coins)


class UpstreamPrompts(Section):
    """Upstream's templates.

    ``rules``: ``GAME_RULE_PROMPTS``, of which play uses the first; ``instructions``: ``INSTRUCT_PROMPTS``, for play;
    ``player_instructions``: ``PLAYER_INSTRUCT_PROMPTS``, for training.
    """

    format: Literal["upstream"] = "upstream"
    rules: Rules
    instructions: Instructions
    player_instructions: Instructions

    def play(self, observation: Observation) -> str:
        """Return upstream's prompt of play: the first paraphrase, the history, the instruction with its cue."""
        rules, instruction = self.rules[0], self.instructions[observation.role]
        lines = "".join(f"\n  - {said.role}: {said.content}" for said in observation.history)
        talk = f"\n### Game History:{lines}" if lines else _FIRST_MOVE
        return f"{rules.format(**observation.facts)}{talk}{instruction.format(**observation.facts)}"

    def training(self, observation: Observation, rng: random.Random) -> str:
        """Return upstream's training prompt, drawn from ``rng``."""
        return self.drawn(observation, Draws.draw(rng, Role(observation.role), len(self.rules)))

    def drawn(self, observation: Observation, draws: Draws) -> str:
        """Return upstream's training prompt. Raises ``DataError`` if it lacks the paraphrase that was drawn."""
        if not 0 <= draws.rules < len(self.rules):
            last = len(self.rules) - 1
            raise DataError(f"draws: rules is {draws.rules}; the prompt file has paraphrases 0 to {last}")
        role, prefix = Role(observation.role), f"\n{draws.dialog_prefix}"
        names = {role: draws.next_player, _other(role): draws.other}
        rules = self.rules[draws.rules].format(**observation.facts)
        instruction = self.player_instructions[role].format(**observation.facts)
        talk = "".join(f"{prefix}{names[Role(said.role)]}: {said.content}" for said in observation.history)
        start = "" if talk else f"{_FIRST_MOVE} "
        cue = f"{prefix}{draws.next_player}: "
        if draws.prompt_type is PromptType.ALPACA:
            head = f"{draws.system_prefix}: {rules}" if draws.system_prefix_shown else rules
            log = f"{prefix}Game History:{talk}\n\n" if talk else start
            return f"{head}{log}{instruction[:-1]}: " if draws.instruction_is_cue else f"{head}{log}{instruction}{cue}"
        system = f"{prefix}{draws.system_prefix}: {rules}\n\n{instruction}{start}"
        return f"{system}{talk}{cue}" if draws.prompt_type is PromptType.CHAT else f"{talk}{system}{cue}"

    def stop_strings(self) -> tuple[str, ...]:
        """Return none: an utterance ends with the end token, or at the token limit."""
        return ()


def upstream_episode(episode: Episode) -> dict[str, Any]:
    """Return an episode as upstream's ``{"history", "target_word", "max_turns"}``."""
    history = [{"role": str(said.role), "content": said.content} for said in episode.history]
    return {"history": history, **{name: episode.task.data[name] for name in ("target_word", "max_turns")}}


def upstream_sample(sample: TrainingSample) -> dict[str, Any]:
    """Return a sample as upstream's ``{"query", "target", "reward", "weight"}``, with a ``type`` for SFT, or a role."""
    fields = {"query": sample.prompt, "target": sample.completion, "reward": sample.reward, "weight": sample.weight}
    if sample.type is SampleType.SFT:
        return {**fields, "type": "sft"}
    return fields if sample.role is None else {**fields, "role": str(sample.role)}


def _other(role: Role) -> Role:
    return Role.DEFENDER if role is Role.ATTACKER else Role.ATTACKER
