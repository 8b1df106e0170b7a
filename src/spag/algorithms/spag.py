"""Episodes to weighted training samples (arXiv 2404.10642, section 3.3; no torch here).

Only the winner's utterances become samples. Its k-th utterance (k = 1, 2, ...) has the coefficient ``(1/discount)**k``, normalised to sum
to 1 over the game, so later utterances, nearer to the win, earn more. The role weight ``N / (2 * N_role)`` makes both roles count one half
in expectation, however unequal their numbers of wins. Rewards for losers and ties are options that upstream leaves out; its author reports
that negative rewards for the loser "did not even converge".

Where the current policy (``learner``) played frozen opponents, only its own utterances become samples, since the importance ratio is
against it; ``N`` and ``N_role`` count the games that give samples, so a game that an opponent won has no say in the weights.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest

from spag.core.episodes import Episode, SampleType, TrainingSample
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.core.types import Observation, Utterance
from spag.games.taboo.judge.judge import JudgeMode, judge_episode
from spag.games.taboo.prompts import PromptSet, play_prompt, training_prompt
from spag.games.taboo.types import Outcome, Role, Verdict


class Template(StrEnum):
    """How a sample's query is worded: drawn anew for each utterance, as upstream; drawn once a game; or the prompt of play.

    Utterances of one game that share a template share most of their query, which training computes once.
    """

    RANDOM = "random"
    GAME = "game"
    PLAY = "play"


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """How games become samples. Rewards of losers and ties are the total over that side's utterances."""

    discount: float = 0.8
    judge: JudgeMode = JudgeMode.STRICT
    loser_reward: float = 0.0
    tie_reward: float = 0.0
    template: Template = Template.RANDOM
    seed: int = 0
    sample_type: SampleType = SampleType.RL
    roles: frozenset[Role] = frozenset(Role)
    """Whose samples are kept; the others' are made and weighed alike, then dropped."""
    learner: str | None = None
    """The player (by the name in the episodes) whose utterances are trained; ``None``: every player's."""


@dataclass(slots=True)
class RewardStats:
    """What the games were and what became of them."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    samples: Counter[Role] = field(default_factory=Counter)
    role_weights: dict[Role, float] = field(default_factory=dict)
    empty_targets: int = 0


def return_coefficients(count: int, discount: float) -> list[float]:
    """Return the normalised coefficients of ``count`` utterances: ``(1/discount)**k``, summing to 1."""
    powers = [discount**-k for k in range(1, count + 1)]
    total = sum(powers)
    return [power / total for power in powers]


def role_weights(outcomes: Mapping[Outcome, int]) -> dict[Role, float]:
    """Return ``N / (2 * N_role)`` for each role that won at least one of the ``N`` decided games."""
    wins = {Role.ATTACKER: outcomes.get(Outcome.ATTACKER_WINS, 0), Role.DEFENDER: outcomes.get(Outcome.DEFENDER_WINS, 0)}
    decided = sum(wins.values())
    return {role: decided / (2 * count) for role, count in wins.items() if count}


def assign_rewards(
    episodes: Iterable[Episode],
    discount: float = 0.8,
    judge: JudgeMode | str = JudgeMode.STRICT,
    *,
    settings: RewardSettings | None = None,
    prompts: PromptSet | None = None,
    stats: RewardStats | None = None,
) -> list[TrainingSample]:
    """Judge ``episodes`` and return the training samples in game order.

    ``settings`` replaces ``discount`` and ``judge`` when given. ``stats`` is filled in when given. The query of a sample is drawn by (seed,
    episode id, turn), so it does not depend on the other episodes.
    """
    settings = settings or RewardSettings(discount=discount, judge=JudgeMode(judge))
    return list(iterate_rewards(list(episodes), settings, prompts=prompts, stats=stats))


def iterate_rewards(
    episodes: Iterable[Episode], settings: RewardSettings, *, prompts: PromptSet | None = None, stats: RewardStats | None = None
) -> Iterator[TrainingSample]:
    """Yield what ``assign_rewards`` returns, holding one game at a time when ``episodes`` is an ``EpisodeFile``.

    The weights of the roles hang on all games, so ``episodes`` is gone through twice: judged, then paid. An iterator, which can be gone
    through once only, is kept in memory. Raises ``DataError`` when the second time shows other games.
    """
    stats = stats if stats is not None else RewardStats()
    games = list(episodes) if isinstance(episodes, Iterator) else episodes
    known: dict[Verdict, Verdict] = {}  # equal verdicts are one object: 8 bytes a game
    verdicts = []
    trained: Counter[Outcome] = Counter()
    for game in games:
        verdict = _bare_verdict(game, settings.judge)
        verdicts.append(known.setdefault(verdict, verdict))
        trained[verdict.outcome] += any(_paid_roles(game, verdict.outcome, settings))
    stats.outcomes.update(verdict.outcome for verdict in verdicts)
    stats.role_weights = role_weights(trained)
    for game, verdict in zip_longest(games, verdicts):
        if game is None or verdict is None:
            raise DataError("the file of games changed while it was read; try again when nothing writes to it")
        for role, total in _paid_roles(game, verdict.outcome, settings):
            if role in settings.roles:
                weight = stats.role_weights[winner] if (winner := verdict.outcome.winner) else 1.0
                yield from _role_samples(game, verdict, role, total, weight, settings, prompts, stats)


def _bare_verdict(game: Episode, judge: JudgeMode) -> Verdict:
    return replace(judge_episode(game, judge), reason="")


def _paid_roles(game: Episode, outcome: Outcome, settings: RewardSettings) -> Iterator[tuple[Role, float]]:
    """Yield (role, total reward) of every side that is trained on this game."""
    totals: dict[Role, float] = {}
    if winner := outcome.winner:
        totals = {winner: 1.0, winner.opponent: settings.loser_reward}
    elif outcome is Outcome.TIE:
        totals = dict.fromkeys(Role, settings.tie_reward)
    for role, total in totals.items():
        player = game.players.get(role)
        if total and (settings.learner is None or (player is not None and player.model == settings.learner)):
            yield role, total


def _role_samples(
    episode: Episode,
    verdict: Verdict,
    role: Role,
    total: float,
    weight: float,
    settings: RewardSettings,
    prompts: PromptSet | None,
    stats: RewardStats,
) -> Iterator[TrainingSample]:
    spoken = [(at, said) for at, said in enumerate(episode.history[: verdict.length]) if said.role is role]
    for (at, said), coefficient in zip(spoken, return_coefficients(len(spoken), settings.discount), strict=True):
        if not said.content.strip():
            stats.empty_targets += 1  # it keeps its share of the return, but there is nothing to train on
            continue
        stats.samples[role] += 1
        yield TrainingSample(
            query=_query(episode, said, at, settings, prompts),
            target=said.content,
            reward=total * coefficient,
            weight=weight,
            role=role,
            type=settings.sample_type,
            episode_id=episode.id,
            turn=at // 2 + 1,
        )


def _query(episode: Episode, said: Utterance, at: int, settings: RewardSettings, prompts: PromptSet | None) -> str:
    secret = episode.target_word if said.role is Role.ATTACKER else None
    observation = Observation(said.role, tuple(episode.history[:at]), episode.max_turns, secret)
    prompts = prompts or PromptSet.default()
    if settings.template is Template.PLAY:
        return play_prompt(observation, prompts)
    utterance = (at,) if settings.template is Template.RANDOM else ()
    rng = random.Random(derive_seed(settings.seed, episode.id or episode.target_word, *utterance))
    return training_prompt(observation, rng, prompts)
