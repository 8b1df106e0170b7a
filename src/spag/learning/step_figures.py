"""Metrics of an online step's games by role, of the policy and its opponents, and warnings of a collapse."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from spag.algorithms.credit import RoleRewards, is_trained, opponents_of
from spag.algorithms.online_settings import RewardOverride
from spag.algorithms.settings import opponent_group
from spag.core.episodes import Episode, TrainingSample
from spag.engines.base import FinishReason
from spag.evaluation.warnings import collapse_warnings
from spag.games.base import Game
from spag.learning.metrics import MetricsLog, Row
from spag.rollout.steps import POLICY, step_of_weights


def figures(
    episodes: Sequence[Episode], game: Game, override: RewardOverride, samples: Sequence[TrainingSample]
) -> dict[str, float]:
    """Return one game's metrics for a step by ``GAME/ROLE/FIGURE``: for the policy's own play in each role.

    Rates are over the policy's games in the role, or over its utterances in them. A role without ``samples``
    is not trained. ``GAME/ROLE against OPPONENT/FIGURE`` are its reward and wins in games against other players;
    ``GAME/ROLE/OPPONENT/FIGURE`` are the results of such an opponent in that role.
    """
    found: dict[str, float] = {f"{game.name}/games": len(episodes)}
    rewards = RoleRewards(game, override)
    for role in game.roles:
        key = f"{game.name}/{role}"
        played = [(opponent_group(info.model), one) for one in episodes if (info := one.players.get(role))]
        for opponent in sorted({name for name, _ in played} - {POLICY}):
            found |= _ends(f"{key}/{opponent}", [one for name, one in played if name == opponent], game, role)
        own = [one for one in episodes if is_trained(one, role, POLICY)]
        if not own:
            continue
        trained = [sample for sample in samples if sample.role == key]
        found[f"{key}/reward"] = fmean(rewards.of(one, role) for one in own)
        found |= _ends(key, own, game, role) | _texts(key, own, role) | _advantages(key, trained)
        for opponent in sorted({opponents_of(one, role, POLICY) for one in own} - {""}):
            met = [one for one in own if opponents_of(one, role, POLICY) == opponent]
            found[f"{key} against {opponent}/reward"] = fmean(rewards.of(one, role) for one in met)
            found[f"{key} against {opponent}/win"] = _ends("", met, game, role)["/win"]
    return found


def staleness(step: int, games: Sequence[Episode]) -> float:
    """Return by how many steps, on average, the policies that played are older than the one trained in ``step``."""
    players = (info for one in games for info in one.players.values() if info.model == POLICY)
    played_by = [identity["weights"] for info in players if (identity := info.identity)]
    return fmean(step - 1 - step_of_weights(weights) for weights in played_by)


def _ends(key: str, games: Sequence[Episode], game: Game, role: str) -> dict[str, float]:
    """Return the shares of games that ``role`` won, and in which it broke a rule."""
    ends = [game.outcomes[one.outcome or ""] for one in games]
    return {
        f"{key}/win": fmean(role in end.winners for end in ends),
        f"{key}/illegal": fmean(end.fault == role for end in ends),
    }


def _texts(key: str, games: Sequence[Episode], role: str) -> dict[str, float]:
    """Return the length in tokens and distinctness of the utterances of ``role``, and the share of cut thoughts.

    Empty if it never spoke: zeros would look like a collapse.
    """
    said = [utterance for one in games for utterance in one.history if utterance.role == role]
    if not said:
        return {}
    found = {
        f"{key}/length": fmean(len(one.token_ids or ()) for one in said),
        f"{key}/distinct": len({utterance.content for utterance in said}) / len(said),
    }
    if thinkers := [utterance for utterance in said if utterance.thought is not None]:
        found[f"{key}/cut_thoughts"] = fmean(one.finish_reason == FinishReason.THOUGHT for one in thinkers)
    return found


def _advantages(key: str, samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Return the number of samples, and the number and share of those without an advantage; no share of 0 samples."""
    idle = sum(sample.reward == 0.0 for sample in samples)
    share = {f"{key}/no_advantage": idle / len(samples)} if samples else {}
    return {f"{key}/samples": len(samples), f"{key}/no_advantage_samples": idle, **share}


class CollapseWatch:
    """Collapse warnings after each step, and their record. ``rows``: those of ``step`` steps; the log extends it."""

    def __init__(self, folder: Path, rows: Sequence[Row], step: int) -> None:
        self.rows = rows
        self.log = MetricsLog(folder / "warnings.jsonl", step)
        self.found = collapse_warnings(rows)

    def look(self, row: Row) -> Mapping[str, str]:
        """Return the warnings after the step of ``row``, which is not in the log yet."""
        before, self.found = self.found.keys(), collapse_warnings([*self.rows, row])
        if self.found.keys() != before:
            self.log.append({"step": row["step"], "warnings": self.found})
        return self.found
