"""The model card: what the model is, where it comes from, what was measured with which doubt, how to do it again, what it is not for.

Figures come from the run folder by way of the report's readers and tables. Nothing is claimed that no file says.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from spag.config.schema import RunConfig
from spag.export.markdown import Markdown, code, list_of, table
from spag.export.metadata import UNKNOWN, card_data, license_of
from spag.export.results import result_lines
from spag.export.sources import Source
from spag.export.weights import Weights
from spag.models.loading import library_versions
from spag.report.rows import versions
from spag.runs.folder import BASE, IMITATION
from spag.runs.reading import RunData

M = Markdown

_LIMITS = (
    M("It was trained to win a word game in English, where attacking means to mislead. Do not take it for a safe or helpful assistant."),
    M("Whatever its base model gets wrong, makes up or is biased about, it may still."),
    M("Rates and ratings hold for these players, prompts, words and this judge, which is a program, not for play against people."),
)
_ATTEMPT = (
    "The same config on the same library versions draws the same words, games and order of training. Rounding differs between machines, "
    "so expect the same figures within their intervals, not the same weights."
)


@dataclass(frozen=True, slots=True)
class Contents:
    """What the card describes: a folder's title, where the model came from, and the files' names; ``gguf`` is ``None`` without one."""

    title: str
    source: Source
    weights: Weights
    gguf: str | None
    config: str


def card(contents: Contents) -> str:
    """Return README.md: metadata of the hub's specification, then the text."""
    run = contents.source.run
    parts = [*_opening(contents), *_use(contents)]
    if run:
        parts += [*_data(contents.source, run), *result_lines(run), *_settings(run)]
    parts += [*_limits(contents.source), *_again(contents)]
    metadata = card_data(contents.title, contents.source).to_yaml()
    body = "\n\n".join(parts)
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}\n"))


def shareable_config(config: RunConfig) -> RunConfig:
    """Return the config without the folders of this machine: of every absolute path, ``./`` and its last part."""

    def shared(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {shared(key): shared(one) for key, one in value.items()}
        if isinstance(value, list):
            return [shared(one) for one in value]
        return f"./{Path(value).name}" if _is_path(value) else value

    return RunConfig.model_validate(shared(config.model_dump(mode="json")))


def _opening(contents: Contents) -> Iterator[Markdown]:
    source, weights = contents.source, contents.weights
    yield M(f"# {code(contents.title)}")
    if source.run is None:
        yield M("Exported with spag. No run folder came with it, so nothing is said here about how it was trained.")
    elif source.name == BASE:
        yield M("The model that a run of spag started from, unchanged.")
    else:
        yield M(
            f"{code(source.name)} of a run of spag {version('spag')}: a language model trained by self-play of Adversarial Taboo "
            "(Cheng et al., arXiv 2404.10642). An attacker, who knows a secret word, tries to make the defender say it unawares; the "
            "defender tries to guess it."
        )
    rows = [
        (M("base model"), code(_shared_name(source.base)) if source.base else M("unknown")),
        (M("parameters"), M(f"{weights.parameters:,}")),
        (M("weights"), M(weights.dtype + (", a LoRA adapter merged into its base" if weights.merged else ""))),
    ]
    if source.run and source.run.finished:
        rows.append((M("run finished"), code(source.run.finished)))
    yield table((M(""), M("")), rows)


def _shared_name(name: str) -> str:
    return Path(name).name if name.startswith(("/", "~", ".")) else name


def _use(contents: Contents) -> Iterator[Markdown]:
    yield M("## Use")
    yield M("```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            "model = AutoModelForCausalLM.from_pretrained(FOLDER)\ntokenizer = AutoTokenizer.from_pretrained(FOLDER)\n```")  # fmt: skip
    yield M("Or against any other model, with `spag play FOLDER` or `spag arena`.")
    config = contents.source.run.config if contents.source.run else None
    if config:
        said = "the model's own chat template" if config.model.prompt_style == "chat" else "bare text after BOS, no chat template"
        yield M(f"The run's games were played with {said} (`prompt_style: {config.model.prompt_style}`).")
    if contents.gguf:
        yield M(f"{code(contents.gguf)} is the same model for llama.cpp, Ollama and `spag play`. No figure below was measured with it.")


def _data(source: Source, run: RunData) -> Iterator[Markdown]:
    if source.name == BASE or run.config is None:
        return
    config = run.config
    yield M("## Data")
    teacher = ", ".join("games shipped with spag" if one == "teacher" else code(_shared_name(one)) for one in config.imitation.episodes)
    lines = [f"Teacher games: {teacher}; {_counts(run, IMITATION)}."]
    drawn = f"{config.selfplay.words:,} drawn an iteration" if config.selfplay.words else "all of them an iteration"
    lines.append(
        f"Target words: {code(_shared_name(config.words.source))}, the {config.words.top:,} most frequent at most, the part for training; "
        f"{drawn}, {config.selfplay.repeats} game{'s' if config.selfplay.repeats > 1 else ''} a word. Words of the arena are held out."
    )
    names = [play.name for play in run.plays]
    until = names.index(source.name) + 1 if source.name in names else 0
    lines += [f"Self-play of {code(play.name)}: {_counts(run, play.name, play.games)}." for play in run.plays[:until]]
    mixed = config.offline_rl.sft_data or config.imitation.training.sft_data
    lines.append(f"Instruction data mixed in: {code(mixed.name)}." if mixed else "No instruction data was mixed in.")
    yield list_of(map(M, lines))


def _counts(run: RunData, name: str, games: int = 0) -> str:
    """Return how many games a stage had, ``games`` where its samples do not tell, and how many training samples."""
    results = run.stages.get(f"{name}/samples", {}).get("results") or {}
    played, samples = (sum(results.get(key, {}).values()) for key in ("outcomes", "samples"))
    made = f", {samples:,} training samples of them" if samples else ""
    count = played or games
    return (f"{count:,} games" if count else "an unknown number of games") + made


def _settings(run: RunData) -> Iterator[Markdown]:
    if run.config is None:
        return
    yield M("## Settings")
    settings = _leaves(shareable_config(run.config).model_dump(mode="json"))
    yield M("<details><summary>Every setting of the run</summary>")
    yield table((M("setting"), M("value")), ((code(name), code(json.dumps(value))) for name, value in settings))
    yield M("</details>")


def _limits(source: Source) -> Iterator[Markdown]:
    yield M("## Limits and licence")
    yield list_of(_LIMITS)
    licence = license_of(source.base or source.model)
    yield M(
        f"Licence of the base model: {code(licence)}. It holds for this model too."
        if licence != UNKNOWN
        else "Licence of the base model: unknown to spag. Look it up: it holds for this model too."
    )


def _again(contents: Contents) -> Iterator[Markdown]:
    run, name = contents.source.run, contents.source.name
    yield M("## How it was made")
    if run and run.config:
        gguf = f" --gguf {contents.gguf.rpartition('-')[2].removesuffix('.gguf')}" if contents.gguf else ""
        yield M(
            f"```\npip install spag=={version('spag')}\nspag run {contents.config} --output RUN\n"
            f"spag export model RUN --name {name} --dtype {contents.weights.dtype}{gguf} --output FOLDER\n```"
        )
        yield M(_ATTEMPT)
        if shareable_config(run.config) != run.config:
            yield M(f"In {code(contents.config)} files and models of the machine are named without their folders; put yours in.")
    used = versions(run) if run else {}
    names = {**library_versions(), "peft": version("peft"), "spag": version("spag")}
    yield M(f"Exported with {_versions(names)}.")
    if used:
        yield M(f"The run recorded {_versions(used)}.")


def _versions(names: Mapping[str, str]) -> str:
    return ", ".join(f"{code(name)} {code(number)}" for name, number in names.items())


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("/", "~"))


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every option by its dotted name."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
