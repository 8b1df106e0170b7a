"""A folder with a good file of every kind that spag reads, and the table of kinds: which file to spoil, and which
commands read it.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from spag.cli import main
from spag.core.episodes import PlayerInfo
from spag.games.taboo.upstream import upstream_episode
from spag.models.loading import load_model
from spag.storage.store import write_json, write_rows
from taboo_games import episode_of
from tiny_model import make_model

TESTS = Path(__file__).parents[1]
BRIEF = {"sampling": {"max_new_tokens": 4}}
"""A random model would talk up to the limit."""
TRAINING = {"global_batch_size": 4, "micro_batch_size": 4, "max_steps": 1, "gradient_checkpointing": False}
CONFIG = {
    "model": {"name": "model", "dtype": "float32", "device": "cpu"},
    "engine": {"backend": "transformers"},
    "game": {"name": "kuhn_poker", "hands": 6},
    "phases": [
        {"algorithm": "imitation", "episodes": ["bot:random"], **TRAINING},
        {
            "algorithm": "reinforce",
            "steps": 1,
            "games": 2,
            "evaluation_tasks": 2,
            "opponents": {"bot:constant": 1},
            **BRIEF,
        },
    ],
    "arena": {"tasks": 2, **BRIEF},
}
WITH_WORD = (
    '{"id":"river-0","game":"adversarial_taboo","target_word":"river","max_turns":5,'
    '"history":[{"role":"attacker","content":"It flows.",'
    '"finish_reason":"eos","token_ids":[5,6],"logprobs":[-0.5,-1.0]},{"role":"defender","content":"I '
    'know the word! It is `river`!",'
    '"finish_reason":"stop"}],"outcome":"defender_wins","reason":"announced","seed":7,'
    '"players":{"attacker":{"model":"a","sampling":{"top_k":3}},"defender":{"model":"d","sampling":{}}}}\n'
)


@dataclass(frozen=True)
class Kind:
    """``file`` is spoiled, then every one of ``commands`` reads it.

    ``inputs``: how many the suite tries. ``works_in``: files and folders in which the commands may replace files by
    whole ones.
    """

    file: str
    inputs: int
    commands: tuple[str, ...]
    works_in: tuple[str, ...] = ()


TABOO = "--set game.name=adversarial_taboo --set game.words=words.txt"
READ_GAMES = (
    "judge {file} --show 2 --output out.jsonl", "judge {file} --mode paper", "rewards {file} --output out.jsonl",
    "rewards {file} --algorithm imitation --output out.jsonl", "import episodes {file} --output out.jsonl",
    "export episodes {file} --output out.json",
)  # fmt: skip
READ_SAMPLES = ("train imitation {file} --config config.yaml --output new", "export samples {file} --output out.json")
READ_WORDS = (
    "words --source {file} --output new.txt",
    f"run config.yaml {TABOO} --set imitation.episodes=[episodes.jsonl] --output new --dry-run",
)
READ_CONFIG = (
    "plan {file}",
    "run {file} --output new --dry-run",
    "rewards episodes.jsonl --algorithm imitation --config {file} --output out.jsonl",
)
READ_RUN = (
    "report run",
    "run config.yaml --output run --dry-run",
    "export model run --output new",
    "run config.yaml --output run",
)
READ_MODEL = (
    "play model --config config.yaml --output new.jsonl",
    "plan config.yaml",
    "export model model --output new",
)
READ_ADAPTER = ("play adapter --config config.yaml --output new.jsonl", "export model adapter --output new")
READ_TASKS = ("eval model --config config.yaml --task-path tasks --tasks spag_common_sense --limit 2 --output new",)
ARENA = "arena bot:random b=bot:random --config config.yaml --output arena"
PLAY = "play bot:random --config config.yaml --output played.jsonl"

KINDS = (
    Kind("episodes.jsonl", 20, READ_GAMES),
    Kind("with_word.jsonl", 15, READ_GAMES),
    Kind("upstream.json", 15, READ_GAMES),
    Kind("played.jsonl", 30, (PLAY,), ("played.jsonl",)),
    Kind("samples.jsonl", 5, READ_SAMPLES),
    Kind("alpaca.json", 30, ("rewards episodes.jsonl --sft {file} --output out.jsonl",)),
    Kind("words.txt", 12, READ_WORDS),
    Kind("prompts.json", 30, (f"rewards episodes.jsonl {TABOO} --set game.prompts={{file}} --output out.jsonl",)),
    Kind("utils.py", 30, ("import prompts {file} --output new.json",)),
    Kind("config.yaml", 12, READ_CONFIG),
    Kind("run/manifest.json", 3, READ_RUN, ("run",)),
    Kind("run/config.yaml", 2, READ_RUN, ("run",)),
    Kind("run/1-imitation/metrics.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/1-imitation/samples.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/1-imitation/training.json", 2, READ_RUN, ("run",)),
    Kind("run/2-reinforce/metrics.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/2-reinforce/evaluations.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/2-reinforce/warnings.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/2-reinforce/opponents.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/arena/episodes.jsonl", 2, READ_RUN, ("run",)),
    Kind("run/arena/results.json", 2, READ_RUN, ("run",)),
    Kind("arena/episodes.jsonl", 10, (ARENA,), ("arena",)),
    Kind("arena/results.json", 4, (ARENA,), ("arena",)),
    Kind("model/config.json", 7, READ_MODEL),
    Kind("model/tokenizer.json", 5, READ_MODEL),
    Kind("model/tokenizer_config.json", 4, READ_MODEL),
    Kind("model/generation_config.json", 3, READ_MODEL),
    Kind("model/model.safetensors", 6, READ_MODEL),
    Kind("adapter/adapter_config.json", 4, READ_ADAPTER),
    Kind("adapter/adapter_model.safetensors", 1, READ_ADAPTER),
    Kind("tasks/common_sense.jsonl", 2, READ_TASKS),
    Kind("tasks/common_sense.yaml", 2, READ_TASKS),
)


def make_world(folder: Path) -> None:
    """Write good files of all kinds into ``folder``, which becomes the working directory."""
    os.chdir(folder)
    make_model(Path("model"))
    Path("config.yaml").write_text(yaml.safe_dump(CONFIG))
    _make_texts()
    _make_adapter()
    for command in (
        "rewards episodes.jsonl --output samples.jsonl",
        "play bot:random --config config.yaml --output played.jsonl",
        "arena bot:random b=bot:random --config config.yaml --output arena",
        "run config.yaml --output run",
    ):
        result = invoke(command)
        assert result.exit_code == 0, result.stderr[-1000:]


def _make_texts() -> None:
    said = ("It flows to the sea.", "A stream?", "Almost.", "I know the word! It is `river`!")
    players = {"attacker": PlayerInfo("a"), "defender": PlayerInfo("d")}
    games = [episode_of(word, *said, id=f"{word}-0", players=players) for word in ("river", "bread", "piano")]
    write_rows(Path("episodes.jsonl"), games)
    write_json(Path("upstream.json"), [upstream_episode(game) for game in games])
    Path("with_word.jsonl").write_text(WITH_WORD + WITH_WORD.replace("river", "bread"))
    write_json(Path("alpaca.json"), [{"instruction": "Add.", "input": given, "output": "2"} for given in ("1+1", "")])
    Path("words.txt").write_text(
        "".join(f"{word}\n" for word in ("river", "bread", "piano", "garden", "window", "teacher") * 3)
    )
    instructions = {"attacker": "Your word: {target_word}.", "defender": "Defend."}
    rules = ["Rules, {max_turns} turns.\n", "Other rules, {max_turns} turns.\n"]
    write_json(
        Path("prompts.json"),
        {"rules": rules, "instructions": instructions, "line": "- {role}: {content}\n", "cue": "{role}:\n"},
    )
    names = {"GAME_RULE_PROMPTS": rules, "INSTRUCT_PROMPTS": instructions, "PLAYER_INSTRUCT_PROMPTS": instructions}
    Path("utils.py").write_text(
        "import os\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in names.items())
    )
    for name in ("out.json", "out.jsonl"):
        Path(name).write_text('{"made": "before"}\n')
    Path("tasks").mkdir()
    for name in ("common_sense.jsonl", "common_sense.yaml"):
        Path("tasks", name).write_bytes((TESTS / "evaluation" / "tasks" / name).read_bytes())


def _make_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(load_model("model", dtype="float32", device="cpu"), settings).save_pretrained("adapter")
    for file in Path("model").glob("tokenizer*"):
        shutil.copy(file, "adapter")


def invoke(command: str) -> Result:
    return CliRunner().invoke(main, command.split())
