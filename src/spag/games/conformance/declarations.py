"""Conformance of what a game declares: names, roles, outcomes, figures, settings and tasks."""

import pickle
import re
from dataclasses import MISSING, fields
from functools import partial

import msgspec

from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, Task
from spag.games.base import Game
from spag.games.conformance.playing import raises
from spag.games.registry import get, setting_hints, settings_of, takes_file


def check_names(game: Game, seed: int) -> None:
    pattern = r"[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+)?"
    assert re.fullmatch(pattern, game.name), (
        f"the name {game.name!r} must be lower-case letters, digits and _, or FAMILY:NAME"
    )
    for text in (game.title, game.summary):
        assert text.strip() and "\n" not in text, f"title and summary must be one line of text, not {text!r}"


def check_roles(game: Game, seed: int) -> None:
    assert len(set(game.roles)) == len(game.roles) == 2, f"a game has two roles, not {game.roles}"
    assert set(game.role_help) == set(game.roles) and all(game.role_help.values()), "role_help must explain every role"


def check_outcomes(game: Game, seed: int) -> None:
    for name, outcome in game.outcomes.items():
        assert name == outcome.name, f"outcome {outcome.name!r} is listed as {name!r}"
        assert set(outcome.winners) <= set(game.roles), f"the winners of {name} are not roles: {outcome.winners}"
        assert outcome.fault in (None, *game.roles), f"the fault of {name} is not a role: {outcome.fault!r}"
        assert outcome.fault not in outcome.winners, f"{name}: who breaks a rule cannot win"
        assert outcome.rule.endswith(".") and "\n" not in outcome.rule, f"the rule of {name} must be a sentence"


def check_labels_and_colors(game: Game, seed: int) -> None:
    outcomes = list(game.outcomes.values())
    assert len({outcome.label for outcome in outcomes}) == len(outcomes) >= 2, "outcomes need labels that differ"
    assert len({outcome.color.lower() for outcome in outcomes}) == len(outcomes), "outcomes need colors that differ"
    for outcome in outcomes:
        color = outcome.color
        assert re.fullmatch(r"#[0-9a-fA-F]{6}", color), f"the color of {outcome.name} is not #rrggbb: {color!r}"


def check_figures(game: Game, seed: int) -> None:
    names = [figure.name for figure in game.figures]
    assert len(set(names)) == len(names), f"figures need names that differ: {names}"
    assert len({figure.label for figure in game.figures}) == len(names), "figures need labels that differ"
    for figure in game.figures:
        name, limit = figure.name, figure.limit
        assert figure.label and figure.role in (None, *game.roles), f"figure {name} needs a label and a role, or None"
        assert figure.of in (None, *names), f"figure {name} is a share of {figure.of!r}, which is not a figure"
        assert limit is None or (0 < limit <= 1 and figure.warning), f"figure {name}: a limit needs a warning"


def check_settings_have_defaults(game: Game, seed: int) -> None:
    settings = fields(game)
    bare = [one.name for one in settings if one.default is MISSING and one.default_factory is MISSING]
    assert not bare, f"a game is made by its name alone, so settings need defaults; these have none: {bare}"


def check_settings_make_the_same_game(game: Game, seed: int) -> None:
    again = get(game.name, **settings_of(game))
    assert type(again) is type(game) and again == game, f"{game.name} with settings_of(game) is another game: {again}"
    values = {name for name, hint in setting_hints(game.name).items() if not takes_file(hint)}
    assert set(game.judged_by) <= values, f"judged_by must name settings, not files: {game.judged_by}"


def check_games_are_values(game: Game, seed: int) -> None:
    copy = pickle.loads(pickle.dumps(game))
    assert copy == game and hash(copy) == hash(game), "a game must survive pickling and be hashable"


def check_tasks_are_json(game: Game, seed: int) -> None:
    for task in game.tasks(Split.TRAIN, None, seed)[:50]:
        assert _as_read_back(task) == task, f"task {task.id!r} does not survive JSON: {task.data}"
        shown = game.describe_task(task)
        assert shown.strip() and "\n" not in shown, f"describe_task must give one line, not {shown!r}"


def _as_read_back(task: Task) -> Task:
    return msgspec.json.decode(msgspec.json.encode(task), type=Task)


def check_splits_are_disjoint(game: Game, seed: int) -> None:
    train, held_out = ([task.id for task in game.tasks(split, None, seed)] for split in Split)
    assert train and held_out, "both splits need tasks"
    assert len({*train, *held_out}) == len(train) + len(held_out), "task ids must be unique, and no task in both splits"


def check_tasks_know_their_split(game: Game, seed: int) -> None:
    for split in Split:
        for task in game.tasks(split, None, seed):
            known = game.split_of(_as_read_back(task))
            assert known is split, f"split_of gives {known!r} for task {task.id!r} of the {split} split"
    assert game.split_of(Task("foreign", {})) in Split, "split_of must name the split of any task"


def check_tasks_follow_count_and_seed(game: Game, seed: int) -> None:
    for split in Split:
        every = {task.id for task in game.tasks(split, None, seed)}
        for count in {0, 1, min(7, len(every)), len(every)}:
            drawn = game.tasks(split, count, seed)
            ids = {task.id for task in drawn}
            call, is_right = f"tasks({split}, {count}, {seed})", len(ids) == len(drawn) == count and ids <= every
            assert is_right, f"{call} gives {len(ids)} tasks of the split"
            assert drawn == game.tasks(split, count, seed), f"{call} differs from call to call"


def check_too_many_tasks_are_refused(game: Game, seed: int) -> None:
    for split in Split:
        count = len(game.tasks(split, None, seed)) + 1
        refused = raises(ConfigError, partial(game.tasks, split, count, seed))
        assert refused, f"{count} tasks of {split} must raise ConfigError"


def check_foreign_tasks_are_refused(game: Game, seed: int) -> None:
    refused = raises(DataError, partial(game.start, Task("foreign", {}), seed))
    assert refused, "start must raise DataError for a task of another game"


def check_custom_tasks_are_playable(game: Game, seed: int) -> None:
    for text in ("", "\x00", "[" * 200, game.describe_task(game.tasks(Split.TRAIN, 1, seed)[0])):
        try:
            task = game.custom_task(text)
        except DataError:
            continue
        assert game.to_move(game.start(task, seed)) in game.roles, f"custom_task({text!r}) cannot be played"
