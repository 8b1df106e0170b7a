"""The mixture of a phase's snapshots in the arena: each game draws one of them, and exact figures are the mixture's."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_run import PHASE, Watcher, config_for, run_here

from spag.cli import main
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError
from spag.engines.players import identity_of
from spag.evaluation.exact_metrics import figures_of, mixture_of, move_probabilities
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.runs.arena import exact_metrics, scored_policies
from spag.runs.checks import check_run
from spag.storage.episodes import read_episodes

KUHN = KuhnPoker()
ENTRANTS = 'arena.entrants=[reinforce, "mixture:reinforce", "bot:random"]'
OPTIONS = (ENTRANTS, "arena.tasks=12", "reinforce.steps=3", "reinforce.evaluate_every=null")


@pytest.mark.slow
def test_a_mixture_of_snapshots_plays_in_the_arena(model_folder: Path, tmp_path: Path) -> None:
    config = config_for(model_folder, *OPTIONS, "reinforce.warmup_ratio=0", "reinforce.learning_rate=1.0e-2")
    run_here(config, tmp_path)
    name, games = "mixture:reinforce", list(read_episodes(tmp_path / "arena" / "episodes.jsonl"))
    assert len(games) == 3 * 2 * 12
    folders = sorted((tmp_path / PHASE / "snapshots").iterdir())
    members = {identity_of(ModelConfig(name=str(folder), dtype="float32"))["weights"] for folder in folders}
    drawn = [
        info.identity["weights"]
        for game in games
        for info in game.players.values()
        if info.model == name and info.identity
    ]
    assert len(drawn) == 48 and set(drawn) == members and len(members) == 3
    assert min(map(drawn.count, members)) >= 6  # 16 each, 3 sigma
    results = json.loads((tmp_path / "arena" / "results.json").read_text())
    assert [row["name"] for row in results["ratings"]] == ["reinforce", name, "bot:random"]
    models = [ModelConfig(name=str(folder), dtype="float32", device="cpu") for folder in folders]
    mixed = figures_of(mixture_of([move_probabilities(model, KUHN) for model in models], KUHN), KUHN)
    assert results["exact_metrics"][name] == pytest.approx(mixed)
    assert results["exact_metrics"]["reinforce"] != pytest.approx(mixed)
    before = (tmp_path / "arena" / "episodes.jsonl").read_bytes()
    run_here(config, tmp_path)
    assert (tmp_path / "arena" / "episodes.jsonl").read_bytes() == before
    watcher = Watcher()
    entrants = {"all": ModelConfig(name=f"mixture:{folders[0].parent}", dtype="float32")}
    again = exact_metrics(scored_policies(entrants, KUHN), KUHN, watcher)
    assert again["all"] == pytest.approx(mixed)
    done = [count for count, _ in watcher.shown]
    assert watcher.total == done[-1] == 3 * 24 and done == sorted(done)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["reinforce.snapshot_every=null"], "mixture:reinforce: reinforce keeps no snapshots; set snapshot_every of"),
        (["reinforce.snapshot_every=4"], "mixture:reinforce: reinforce keeps no snapshots; set snapshot_every of"),
        (['arena.entrants=[base, "mixture:nowhere"]'], "mixture:nowhere: no model in that folder"),
        (['reinforce.opponents={"mixture:reinforce": 1}'], "a mixture can only play in an arena; name snapshot in opp"),
    ],
)
def test_what_no_mixture_can_be_is_refused_before_the_run(model_folder: Path, options: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_run(config_for(model_folder, *OPTIONS, *options), KUHN)


def test_a_mixture_plays_nowhere_else(tmp_path: Path) -> None:
    arguments = ["play", "mixture:x", "--output", str(tmp_path / "games.jsonl"), "--game", "kuhn_poker"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 2 and "mixture:x: no model in that folder" in found.output
