"""Adversarial Taboo as a state machine (arXiv 2404.10642, section 3.1).

The rules of winning live in ``judge.py``; this file only keeps order: who speaks, what each side sees, when the game is over. Upstream's
loop stops a game only on the defender's guess phrase; here it stops at the judged end, so no utterance is ever spoken after the decision.
"""

from dataclasses import dataclass, replace

from spag.core.types import GameState, Observation, Utterance
from spag.games.taboo.judge.judge import JudgeMode, final_verdict, judge_utterance
from spag.games.taboo.types import Role, Verdict


@dataclass(frozen=True, slots=True)
class AdversarialTaboo:
    """The game under one judge. Satisfies ``spag.core.types.Game``."""

    judge: JudgeMode = JudgeMode.STRICT
    name: str = "adversarial_taboo"

    def initial_state(self, target_word: str, max_turns: int) -> GameState:
        if not target_word.strip():
            raise ValueError("the target word is empty")
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; it must be at least 1")
        return GameState(target_word, max_turns)

    def observe(self, state: GameState, role: Role) -> Observation:
        secret = state.target_word if role is Role.ATTACKER else None
        return Observation(role, state.history, state.max_turns, secret)

    def apply(self, state: GameState, utterance: Utterance) -> GameState:
        if state.verdict is not None:
            raise ValueError("the game is over")
        if utterance.role is not state.role_to_move:
            raise ValueError(f"it is the {state.role_to_move}'s move, not the {utterance.role}'s")
        history = (*state.history, utterance)
        ruling = judge_utterance(utterance.role, utterance.content, state.target_word, self.judge)
        if ruling is not None:
            outcome, reason = ruling
            return replace(state, history=history, verdict=Verdict(outcome, len(history), reason))
        over = len(history) == 2 * state.max_turns
        return replace(state, history=history, verdict=final_verdict(len(history)) if over else None)
