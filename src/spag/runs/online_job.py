"""The online stage as a job that one or several processes do; ``python -m spag.runs.online_job JOB PARENT`` is each of several."""

from functools import partial
from typing import Any, ClassVar

from spag.config.schema import FREE_TO_CHANGE, RunConfig, UpdateConfig
from spag.games.registry import settings_of
from spag.runs.folder import ONLINE, online_start
from spag.runs.online import games_of, open_selfplay, roles_of
from spag.runs.run import Results, Run
from spag.training.callbacks import OnProgress
from spag.training.launch import launch
from spag.training.online_run import train_online
from spag.training.worker import Job, work


class OnlineJob(Job, frozen=True):
    """Online training of ``start_from`` by the settings of a run."""

    module: ClassVar[str] = "spag.runs.online_job"
    config: RunConfig

    @property
    def settings(self) -> UpdateConfig:
        return self.config.online

    def run(self, progress: OnProgress | None = None) -> None:
        """Raises what ``train_online`` raises."""
        mix = games_of(self.config)
        games: list[Any] = [[part.game.name, part.weight, dict(settings_of(part.game))] for part in mix]
        train_online(
            partial(open_selfplay, self.config, self.output),
            roles_of(mix),
            model=self.model,
            settings=self.config.online,
            start_from=self.start_from,
            output=self.output,
            seed=self.config.seed,
            belongs_to=games,
            progress=progress,
        )


def learn_online(run: Run) -> None:
    """The online stage: steps of play and training, from imitation or the last offline iteration."""
    start, folder = online_start(run.config), run.folder / ONLINE

    def train() -> Results:
        job = OnlineJob(model=run.config.model, start_from=run.checkpoint(start), output=folder, config=run.config)
        return launch(job, run.setup.reporter, ONLINE, run.config.cluster)

    online = run.config.online.model_dump(mode="json", exclude=set(FREE_TO_CHANGE))
    settings = run.settings("seed", "model", "game", online=online)
    run.stage(f"{ONLINE}/train", settings, run.trained(start), [ONLINE], train, kept=[f"{ONLINE}/checkpoint"])


if __name__ == "__main__":
    work(OnlineJob)
