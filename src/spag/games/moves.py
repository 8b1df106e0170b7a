"""Games whose utterances name one move in square brackets: shared by Kuhn and Leduc poker, tic-tac-toe and Nim.

A player may write anything around its move; the other sees only the move, so no text can give a card away or
feign one. Text that does not name exactly one legal move ends the game.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from spag.core.errors import ConfigError
from spag.core.types import Observation, Outcome, Result, State, Task, Utterance
from spag.core.visible import counted
from spag.games.base import Bot, Decision, Figure, Game, Policy, SolvedGame, bracketed, outcome_map

Moves = tuple[str, ...]
Player = Callable[[Task, Moves], Mapping[str, float]]
"""The chance of each legal move after the moves."""
ROLES = ("player_0", "player_1")
_ILLEGAL = "illegal or unreadable move"
ILLEGAL = Figure("illegal", f"{_ILLEGAL}s", limit=0.05, warning=f"of games end with an {_ILLEGAL}")


def random_bot(observation: Observation, rng: random.Random) -> str:
    """Play any legal move."""
    return f"[{rng.choice(observation.facts['legal'])}]"


def constant_bot(observation: Observation, rng: random.Random) -> str:
    """Play the first legal move."""
    return f"[{observation.facts['legal'][0]}]"


def drawn_move(chances: Mapping[str, float], rng: random.Random) -> str:
    """Play a move with its chance."""
    return f"[{rng.choices(list(chances), list(chances.values()))[0]}]"


def shares_of_moves(name: str, label: str) -> tuple[Figure, ...]:
    """Return a figure for each role: how many of its moves ``MoveGame.remarks`` calls ``ROLE_name``."""
    return tuple(Figure(f"{role}_{name}", f"{role}: {label}", role, of=f"{role}_moves") for role in ROLES)


def move_outcomes(
    win: str, illegal: str, draw: Outcome, *, wins: str = "wins", labels: Sequence[str] = ROLES
) -> Mapping[str, Outcome]:
    """Return the outcomes of a ``MoveGame``; ``win`` and ``illegal`` are their rules."""
    first, second = labels
    return outcome_map(
        Outcome("player_0_wins", f"{first} {wins}", "#0072b2", winners=("player_0",), rule=win),
        Outcome("player_1_wins", f"{second} {wins}", "#e69f00", winners=("player_1",), rule=win),
        draw,
        Outcome("player_0_illegal", f"{first} breaks a rule", "#56b4e9", fault="player_0", rule=illegal),
        Outcome("player_1_illegal", f"{second} breaks a rule", "#d55e00", fault="player_1", rule=illegal),
    )


@dataclass(frozen=True)
class MoveGame(Game):
    """Subclasses define ``vocabulary``, ``legal_moves``, ``facts`` and ``final``, and the rest of ``Game``.

    Legal moves must not depend on hidden information: every observation holds them under ``legal``, in their order.
    """

    roles = ROLES
    fixed_form = ROLES
    figures = (ILLEGAL, *(Figure(f"{role}_moves", f"{role}: legal moves", role, is_count=True) for role in ROLES))
    reward_range: ClassVar[tuple[float, float]] = (-2.0, 1.0)  # an illegal move and a win
    bots: ClassVar[Mapping[str, Bot]] = {"random": random_bot, "constant": constant_bot}

    @property
    def rules(self) -> str:
        """The text that begins every prompt."""
        raise NotImplementedError

    def vocabulary(self) -> Moves:
        """Return every move that a text can name, legal or not, in lower case."""
        raise NotImplementedError

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        """Return the legal moves after ``moves``, the most harmless first; none when the game is over."""
        raise NotImplementedError

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        """Return what ``role`` knows after ``moves``."""
        raise NotImplementedError

    def final(self, state: State, moves: Moves) -> Result:
        """Return the result of a game that is over after ``moves``."""
        raise NotImplementedError

    def illegal_rewards(self, task: Task, moves: Moves) -> tuple[float, float]:
        """Return the rewards of a player whose text after ``moves`` is not a legal move, and of the other.

        By default the player loses more than a game: an illegal move is worst even in a lost position.
        """
        return -2.0, 1.0

    def played(self, task: Task, history: Sequence[Utterance]) -> Moves:
        """Return the moves of ``history`` up to the first illegal one."""
        moves: Moves = ()
        for said in history:
            move = bracketed(said.content, self.vocabulary())
            if move not in self.legal_moves(task, moves):
                break
            moves = (*moves, move)
        return moves

    def observe(self, state: State, role: str) -> Observation:
        moves = self.played(state.task, state.history)
        bare = [Utterance(said.role, f"[{move}]") for said, move in zip(state.history, moves, strict=False)]
        bare += [Utterance(said.role, "(no legal move)") for said in state.history[len(moves) :]]
        legal = self.legal_moves(state.task, moves) if len(moves) == len(state.history) else ()
        return Observation(role, tuple(bare), {**self.facts(state.task, moves, role), "legal": list(legal)})

    def rule(self, state: State) -> Result | None:
        moves = self.played(state.task, state.history)
        legal = self.legal_moves(state.task, moves)
        if len(moves) == len(state.history):
            return None if legal else self.final(state, moves)
        said = state.history[-1]
        move = bracketed(said.content, self.vocabulary())
        did = f"said [{move}]" if move else "did not name one move in square brackets"
        own, others = self.illegal_rewards(state.task, moves)
        rewards = {role: own if role == said.role else others for role in self.roles}
        allowed = ", ".join(f"[{one}]" for one in legal)
        return self.end(state, f"{said.role}_illegal", rewards, f"{said.role} {did}; legal moves: {allowed}")

    def draw(self, state: State) -> Result:
        return self.end(state, "unfinished", dict.fromkeys(self.roles, 0.0), "the game was cut short")

    def stop_strings(self) -> tuple[str, ...]:
        return tuple(f"\n{role}:" for role in self.roles)

    def template_texts(self) -> tuple[str, ...]:
        return (self.rules,)

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        """Return the figures that count the last of ``moves``, made by ``role``."""
        return ()

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        moves = self.played(task, history[: result.length])
        found = Counter({"illegal": 1} if len(moves) < result.length else {})
        for turn, said in enumerate(history[: len(moves)], start=1):
            found.update((f"{said.role}_moves", *self.remarks(task, moves[:turn], said.role)))
        return found

    def decision(self, key: str, state: State, role: str, own: tuple[tuple[str, str], ...] | None = None) -> Decision:
        """Return the decision of ``role`` in ``state``; ``own``: its earlier ones."""
        seen = self.observe(state, role)
        return Decision(key, seen, tuple(f"[{move}]" for move in seen.facts["legal"]), own)


@dataclass(frozen=True)
class OpenGame(MoveGame, SolvedGame):
    """A ``MoveGame`` without hidden information, in which the value of every position is known."""

    figures = (*MoveGame.figures, *shares_of_moves("optimal", "optimal moves"))

    def position(self, task: Task, moves: Moves) -> str:
        """Return the key of the decision after ``moves``, which contains everything that matters: the board."""
        raise NotImplementedError

    def value(self, task: Task, moves: Moves) -> float:
        """Return the reward of the player to move after ``moves`` when both play perfectly."""
        raise NotImplementedError

    def best_moves(self, task: Task, moves: Moves = ()) -> Moves:
        """Return the moves that keep the value: in a lost position, all."""
        value = self.value(task, moves)
        return tuple(move for move in self.legal_moves(task, moves) if -self.value(task, (*moves, move)) == value)

    def player_of(self, policy: Policy) -> Player:
        """Return the player with ``policy``."""
        bare = without_brackets(policy)
        return lambda task, moves: bare[self.position(task, moves)]

    def rewards(self, first: Player | None, second: Player | None) -> Callable[[Task], float]:
        """Return a function of a task: the expected reward of ``first``, who moves first, against ``second``; ``None``
        plays a best response.
        """
        known: dict[tuple[str, int], float] = {}

        def expected(task: Task, moves: Moves = ()) -> float:
            mover = len(moves) % 2
            place, player = (self.position(task, moves), mover), (first, second)[mover]
            if place not in known:
                after = {move: -expected(task, (*moves, move)) for move in self.legal_moves(task, moves)}
                if not after:
                    known[place] = self.value(task, moves)
                elif player is None:
                    known[place] = max(after.values())
                else:
                    known[place] = sum(chance * after[move] for move, chance in player(task, moves).items())
            return known[place]

        return expected

    def mean_reward(self, player: Player, opponent: Player | None, tasks: Sequence[Task]) -> float:
        """Return the mean of the player's expected rewards in ``tasks``, on either side."""
        moving, answering = self.rewards(player, opponent), self.rewards(opponent, player)
        return fmean(reward for task in tasks for reward in (moving(task), -answering(task)))

    def turn_rewards(self, task: Task, history: Sequence[Utterance], result: Result) -> Sequence[float]:
        """Return each utterance's change of value for its speaker: 0 for an optimal move, less for a mistake.

        For an illegal move, its reward serves as the value after it.
        """
        moves = self.played(task, history[: result.length])
        rewards = [-self.value(task, moves[: turn + 1]) - self.value(task, moves[:turn]) for turn in range(len(moves))]
        if len(moves) < result.length and self.outcomes[result.outcome].fault:
            rewards.append(result.rewards[history[len(moves)].role] - self.value(task, moves))
        return rewards + [0.0] * (len(history) - len(rewards))

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        return (f"{role}_optimal",) if -self.value(task, moves) == self.value(task, moves[:-1]) else ()


def any_of(moves_after: Callable[[Task, Moves], Moves]) -> Player:
    """Return the player that draws one of the moves that ``moves_after`` returns."""
    return lambda task, moves: dict.fromkeys(found := moves_after(task, moves), 1 / len(found))


def without_brackets(policy: Policy) -> Policy:
    """Return ``policy`` with its moves as they are between the brackets."""
    return {key: {move.strip("[]"): chance for move, chance in chances.items()} for key, chances in policy.items()}


def in_rounds(tasks: int, size: int, count: int | None, seed: int, setting: str) -> list[int]:
    """Return ``count`` of the task numbers below ``tasks``, drawn by ``seed`` in rounds of ``size``, or all of them.

    Tasks with equal numbers modulo ``size`` are alike, so that any count is nearly balanced. Errors name ``setting``.
    """
    if count is None:
        return list(range(tasks))
    if count > tasks:
        more = f"ask for fewer or raise game.{setting}"
        raise ConfigError(f"{counted(count, 'task')} asked for, but the split has {tasks:,}; {more}")
    rng = random.Random(seed)
    rounds = rng.sample(range(tasks // size), -(-count // size))
    return [size * drawn + place for drawn in rounds for place in rng.sample(range(size), size)][:count]
