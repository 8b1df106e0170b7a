"""spag's games in TRL: what a sample consists of, with a scripted generator, and one real GRPO step of a tiny model."""

import json
import runpy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
import torch
from expected import REPLY, check_thoughts_are_private, shown_to
from transformers import AutoTokenizer

from spag.adapters.opponent import Opponent, engine_of
from spag.adapters.trl import GameRollout, game_prompts, game_reward, role_reward
from spag.core.errors import ConfigError, EngineError
from spag.core.types import Split, Utterance
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.games.base import Game
from spag.games.registry import SHIPPED, get
from spag.models.tokens import PromptStyle
from tiny_model import make_model

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
EOS = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHATML
    return tokenizer


class Scripted:
    """What a rollout uses of a trainer. ``say`` maps the text of a context to what the model says next."""

    def __init__(self, tokenizer: Any, say: Any, *, logprob: float | None = None, processes: int = 1) -> None:
        self.processing_class, self.say, self.logprob, self.contexts = tokenizer, say, logprob, []
        self.accelerator = SimpleNamespace(num_processes=processes, device="cpu", gather=lambda tensor: tensor)
        self.model, self.num_generations, self.num_generations_eval = SimpleNamespace(training=True), 2, 1
        self.reward_funcs: list[Any] = [game_reward]

    def _generate_single_turn(
        self, contexts: list[list[int]], images: None, fields: dict[str, Any], generations: int
    ) -> Any:
        assert (images, fields, generations) == (None, {}, 1)
        self.contexts += contexts
        said = [
            [*self.processing_class.encode(self.say(self.processing_class.decode(ids)), add_special_tokens=False), EOS]
            for ids in contexts
        ]
        return said, None if self.logprob is None else [[self.logprob] * len(ids) for ids in said]


def pieces(tokenizer: Any, ids: list[int], mask: list[int]) -> list[tuple[int, str]]:
    """Return a completion as runs of the same mask, with the text of each."""
    runs: list[tuple[int, list[int]]] = []
    for token, own in zip(ids, mask, strict=True):
        if not runs or runs[-1][0] != own:
            runs.append((own, []))
        runs[-1][1].append(token)
    return [(own, tokenizer.decode(run)) for own, run in runs]


def first_pieces(tokenizer: Any, game: Game, reply: str, *, logprob: float | None = None) -> tuple[str, str]:
    """Return what an attacker that replies with ``reply`` is trained to say first, and the text that follows."""
    with frozen(game) as opponent:
        rollout = GameRollout(game, opponent, roles=("attacker",), style=PromptStyle.PLAIN)
        trainer = Scripted(tokenizer, lambda context: reply, logprob=logprob)
        out = rollout([row["prompt"] for row in game_prompts(game, 1)], trainer)
    [(_, said), (_, shown), *_] = pieces(tokenizer, (out["completion_ids"] or [])[0], (out["env_mask"] or [])[0])
    return said, shown


def taboo() -> Game:
    return get("adversarial_taboo", max_turns=2, words="shipped")


def frozen(game: Game, reply: str = "Do you mean the sea?") -> Opponent:
    return Opponent(game, lambda: ScriptedEngine(lambda request: reply))


@pytest.mark.parametrize("style", [PromptStyle.PLAIN, PromptStyle.CHAT])
def test_a_sample_is_a_whole_game_in_which_only_the_models_words_are_its_own(
    tokenizer: Any, style: PromptStyle
) -> None:
    game = taboo()
    trainer = Scripted(tokenizer, lambda context: "Look at this.", logprob=-0.5)
    with frozen(game) as opponent:
        out = GameRollout(game, opponent, roles=("attacker",), style=style)(
            [row["prompt"] for row in game_prompts(game, 1)], trainer
        )
    [ids], [mask], [logprobs], [prompt_ids] = (
        out[name] or [] for name in ("completion_ids", "env_mask", "logprobs", "prompt_ids")
    )
    word = game.tasks(Split.TRAIN, 1, 0)[0].id
    assert f'The target word is "{word}"' in tokenizer.decode(prompt_ids)
    (own, first), (other, shown), (again, second) = pieces(tokenizer, ids, mask)
    assert (own, other, again) == (1, 0, 1) and first == second == "Look at this.</s>"
    assert "- attacker: Look at this.\n- defender: Do you mean the sea?\n" in shown and "target word" in shown
    assert "Adversarial" not in shown and shown.count("</s>") == (1 if style is PromptStyle.CHAT else 0)
    assert logprobs == [-0.5 if own else 0.0 for own in mask]
    assert trainer.contexts[1] == [
        *prompt_ids,
        *ids[: -len(tokenizer.encode(second, add_special_tokens=False))],
    ]  # generated where it stands
    assert out["game_reward"] == [0.0] and out["game_outcome"] == ["tie"]


def test_a_group_is_one_word_and_seed_with_the_roles_swapped(tokenizer: Any) -> None:
    game = taboo()
    seen: list[Request] = []
    engine = ScriptedEngine(lambda request: seen.append(request) or "Hm.")
    prompts = [row["prompt"] for row in game_prompts(game, 2) for _ in range(4)]
    with Opponent(game, lambda: engine) as opponent:
        out = GameRollout(game, opponent)(prompts, Scripted(tokenizer, lambda context: "Oh."))
    roles = out["game_role"] or []
    assert [sorted(roles[:4]), sorted(roles[4:])] == [["attacker", "attacker", "defender", "defender"]] * 2
    firsts = [request.seed for request in seen if request.observation and len(request.observation.history) == 1]
    assert len(firsts) == 4 and len(set(firsts)) == 2  # the other side draws alike in all games of a group
    assert out["logprobs"] is None


def test_in_self_play_a_game_gives_a_sample_to_each_role(tokenizer: Any) -> None:
    game = get("kuhn_poker")
    prompts = [row["prompt"] for row in game_prompts(game, 1)] * 4
    trainer = Scripted(tokenizer, lambda context: "[bet]" if "[check] or [bet]?" in context[-200:] else "[call]")
    out = GameRollout(game)(prompts, trainer)
    assert len(trainer.contexts) == 4  # two games of two moves
    rewards, roles = out["game_reward"] or [], out["game_role"] or []
    assert rewards[0] == -rewards[1] == rewards[2] == -rewards[3] and abs(rewards[0]) == 2
    assert roles[0] != roles[1] and roles[:2] == roles[2:]
    assert role_reward(prompts, rewards, roles) == [0.0] * 4 and game_reward(rewards, roles) == rewards


def test_a_model_that_never_spoke_learns_nothing(tokenizer: Any) -> None:
    game = taboo()
    prompts = [row["prompt"] for row in game_prompts(game, 1)]
    word = json.loads(prompts[0])["task"]["id"]
    with frozen(game, f"It is {word}.") as opponent:
        out = GameRollout(game, opponent, roles=("defender",))(
            prompts, Scripted(tokenizer, lambda context: "Never said.")
        )
    assert (
        out["env_mask"] == [[0]]
        and out["game_outcome"] == ["attacker_violation"]
        and len((out["prompt_ids"] or [[]])[0]) > 0
    )


def test_tokens_behind_a_stop_string_are_dropped(tokenizer: Any) -> None:
    said, shown = first_pieces(tokenizer, taboo(), "Look.\n- defender: I see\nmore", logprob=-1.0)
    assert said.startswith("Look.\n- defender:") and "see" not in said and "- attacker: Look.\n" in shown


def test_what_is_said_is_what_is_trained_where_a_thought_closes_behind_a_stop_string(tokenizer: Any) -> None:
    """The first stop string ends the reply, as in an engine, which has not seen the mark."""
    game = taboo()
    [stop, *_] = game.stop_strings()
    reply = f"Look.{stop} Hm.</think>See.{stop} Oh."
    said, shown = first_pieces(tokenizer, game, reply)
    assert said == f"Look.{stop}" and "- attacker: Look.\n" in shown


def test_role_reward_takes_each_roles_mean_within_its_group() -> None:
    roles = ["a", "d", "a", "d"] * 2
    rewards = [1.0, 0.0, 0.0, -1.0, 3.0, 3.0, 3.0, 5.0]
    assert role_reward(["p"] * 4 + ["q"] * 4, rewards, roles) == [0.5, 0.5, -0.5, -0.5, 0.0, -1.0, 0.0, 1.0]


def test_a_role_that_the_game_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="role 'atacker': adversarial_taboo has the roles attacker, defender"):
        GameRollout(get("adversarial_taboo"), roles=("attacker", "atacker"))


def test_processes_with_nothing_left_still_generate_while_others_play(tokenizer: Any) -> None:
    game = get("kuhn_poker")
    trainer = Scripted(tokenizer, lambda context: "no move", processes=2)
    others = iter([1, 1, 1, 1, 1, 1, 0])  # games still played, then replies due, in turn
    trainer.accelerator.gather = lambda tensor: torch.tensor([*tensor.tolist(), next(others)])
    GameRollout(game)([row["prompt"] for row in game_prompts(game, 1)] * 2, trainer)
    assert len(trainer.contexts) == 3 and trainer.contexts[1:] == [[EOS]] * 2


class Exchange:
    """What two processes give each other."""

    def __init__(self) -> None:
        self.given: list[list[Any]] = [[], []]
        self.barrier = threading.Barrier(2, timeout=60)

    def gather(self, rank: int, own: list[Any]) -> list[Any]:
        self.given[rank] = own
        self.barrier.wait()
        everything = [one for given in self.given for one in given]
        self.barrier.wait()
        return everything


class Served(Scripted):
    """One of two processes with one vLLM server: it replies to the prompts of all, and TRL takes each process's share
    as here.
    """

    def __init__(self, tokenizer: Any, say: Any, rank: int, exchange: Exchange) -> None:
        super().__init__(tokenizer, say, logprob=-0.5, processes=2)
        self.rank, self.exchange = rank, exchange
        self.accelerator.gather = lambda tensor: torch.tensor(exchange.gather(rank, tensor.tolist()))

    def _generate_single_turn(
        self, contexts: list[list[int]], images: None, fields: dict[str, Any], generations: int
    ) -> Any:
        said, logprobs = super()._generate_single_turn(
            self.exchange.gather(self.rank, contexts), images, fields, generations
        )
        share = slice(self.rank * len(contexts), (self.rank + 1) * len(contexts))
        return said[share], logprobs[share]


def test_a_process_plays_on_the_replies_to_its_own_games(tokenizer: Any) -> None:
    """Also once a game of the second process has ended, and it has fewer replies due than the first."""
    game, exchange = taboo(), Exchange()
    rows = [row["prompt"] for row in game_prompts(game, 4)]
    prompts = [[row for row in own for _ in range(2)] for own in (rows[:2], rows[2:])]
    word = json.loads(rows[2])["task"]["id"]

    def say(context: str) -> str:
        return f"It is {word}." if f'The target word is "{word}"' in context else f"Hm {crc32(context.encode())}."

    def play(rank: int) -> dict[str, list[Any] | None]:
        return GameRollout(game, style=PromptStyle.PLAIN)(prompts[rank], Served(tokenizer, say, rank, exchange))

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(play, range(2)))
    alone = [GameRollout(game, style=PromptStyle.PLAIN)(own, Scripted(tokenizer, say, logprob=-0.5)) for own in prompts]
    assert together == alone
    assert together[1]["game_outcome"] == ["attacker_violation"] * 2 + ["tie"] * 2


def test_a_group_on_several_processes_is_refused(tokenizer: Any) -> None:
    trainer = Scripted(tokenizer, str, processes=2)
    with pytest.raises(ConfigError, match=r"^num_generations=2: a process gets 1 of a group, .* a multiple of it$"):
        GameRollout(get("kuhn_poker"))([row["prompt"] for row in game_prompts(get("kuhn_poker"), 2)], trainer)


def test_role_reward_needs_two_samples_of_each_role(tokenizer: Any) -> None:
    game, trainer = get("kuhn_poker"), Scripted(tokenizer, lambda context: "no move")
    prompts = [row["prompt"] for row in game_prompts(game, 1)] * 2
    trainer.reward_funcs = [game_reward, role_reward]
    with pytest.raises(ConfigError, match=r"^num_generations=2: role_reward needs two .*; set num_generations=4 or"):
        GameRollout(game)(prompts, trainer)
    assert GameRollout(game, roles=("player_0",))(prompts, trainer)["game_role"] == ["player_0"] * 2
    trainer.num_generations = 4
    assert GameRollout(game)(prompts * 2, trainer)["game_reward"]


def test_a_model_as_opponent_leaves_the_gpu_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    game, opened = get("kuhn_poker"), []
    monkeypatch.setattr("spag.adapters.opponent.open_player", lambda *call: opened.append(call))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    engine_of("smollm2-135m", game)()
    monkeypatch.setenv("LOCAL_RANK", "1")
    engine_of("smollm2-135m", game)()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    engine_of("smollm2-135m", game)()
    assert [model.device for model, _, _ in opened] == [None, "cuda:1", None]
    assert {engine.backend for _, _, engine in opened} == {"transformers"}


def test_a_dead_opponent_is_one_line(tokenizer: Any) -> None:
    game = taboo()

    def fail(request: Request) -> str:
        raise EngineError("the endpoint is gone")

    with (
        Opponent(game, lambda: ScriptedEngine(fail)) as opponent,
        pytest.raises(EngineError, match=r"^the opponent failed: the endpoint is"),
    ):
        GameRollout(game, opponent, roles=("defender",))(
            [row["prompt"] for row in game_prompts(game, 1)], Scripted(tokenizer, str)
        )


def test_an_opponent_says_nothing_once_a_game_outgrows_its_context() -> None:
    """Other games of the batch get their replies; a first prompt without room is an error."""
    game = taboo()
    start = game.start(game.tasks(Split.TRAIN, 1, 0)[0], 1)
    short = game.apply(start, Utterance("attacker", "Go on."))
    long = game.apply(short, Utterance("defender", "The sea?"))
    long = game.apply(long, Utterance("attacker", "Go on. " * 400))
    with Opponent(game, lambda: ScriptedEngine(lambda request: "The sea?", context=600)) as opponent:
        replies = opponent.replies([long, short])
        assert [(one.content, one.finish_reason) for one in replies] == [("", "context"), ("The sea?", "eos")]
    with (
        Opponent(game, lambda: ScriptedEngine(lambda request: "The sea?", context=5)) as opponent,
        pytest.raises(EngineError, match="exceeds the context length of 5"),
    ):
        opponent.replies([start])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_model_gets_the_games_prompts_and_nothing_else(tokenizer: Any, name: str) -> None:
    """The conformance suite tests that a prompt holds no secret."""
    game = get(name)
    [task] = game.tasks(Split.TRAIN, 1, 0)
    for role in game.roles:
        trainer = Scripted(tokenizer, lambda context: REPLY)
        prompt = json.dumps({"task": {"id": task.id, "data": dict(task.data)}, "seed": 3})
        with frozen(game, REPLY) as opponent:
            GameRollout(game, opponent, roles=(role,), style=PromptStyle.PLAIN)([prompt], trainer)
        last = tokenizer.decode(trainer.contexts[-1], skip_special_tokens=True) if trainer.contexts else ""
        assert last == f"{REPLY}\n".join(shown_to(game, role, task, 3))


def test_one_grpo_step_with_a_tiny_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    game = get("kuhn_poker")
    args = GRPOConfig(
        str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_completion_length=8, max_steps=1,
        learning_rate=1e-3, report_to=[], use_cpu=True, bf16=False, save_strategy="no", logging_steps=1,
        gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    rollout = GameRollout(game, Opponent(game, engine_of("bot:equilibrium", game)), style=PromptStyle.PLAIN)
    trainer = GRPOTrainer(
        str(folder), [varied], args, Dataset.from_list(game_prompts(game, 4)), rollout_func=rollout,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["step"] == 1 and logged["grad_norm"] > 0
    assert {"reward/player_0", "reward/player_1"} <= logged.keys()
    assert any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


def varied(game_reward: list[float], game_role: list[str], log_metric: Any = None, **_: Any) -> list[float]:
    """What the game pays, and a little for the place in the group: a random model loses every game alike, and would
    learn nothing.
    """
    from spag.adapters.trl import game_reward as paid

    return [reward + 0.1 * at for at, reward in enumerate(paid(game_reward, game_role, log_metric))]


def test_the_example_trains_and_saves(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    example = Path(__file__).parent.parent.parent / "examples" / "trl_grpo.py"
    said = ["--game", "kuhn_poker", "--opponent", "bot:random", "--steps", "1", "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [str(example), str(folder), *said])
    runpy.run_path(str(example), run_name="__main__")
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("role", ["player_0", "player_1"])
def test_thoughts_are_private(folder: Path, role: str, opens: bool) -> None:
    """Also where the chat template opens the thought, so that the reply begins inside it."""
    game, tokenizer = get("kuhn_poker"), AutoTokenizer.from_pretrained(folder)
    opened = "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}" if opens else ""
    tokenizer.chat_template = CHATML.replace("<|assistant|>", f"<|assistant|>{opened}")

    def play(reply: str) -> object:
        heard: list[str] = []
        thinking = reply.startswith("<think>")

        def answer(request: Request) -> str:
            heard.append(request.prompt)
            return REPLY

        trainer = Scripted(tokenizer, lambda context: reply.removeprefix("<think>\n") if opens else reply)
        with Opponent(game, lambda: ScriptedEngine(answer)) as opponent:
            rollout = GameRollout(game, opponent, roles=(role,), thinking=thinking)
            out = rollout([row["prompt"] for row in game_prompts(game, 1)], trainer)
        if opens and thinking:
            assert all(tokenizer.decode(ids).endswith("<|assistant|><think>\n") for ids in trainer.contexts)
        return heard, out["game_outcome"], out["game_reward"]

    check_thoughts_are_private(play)


@pytest.mark.parametrize("thinking", [False, True])
def test_in_tags_the_answer_alone_is_said(tokenizer: Any, thinking: bool) -> None:
    game = get("kuhn_poker")
    said = f"{'zebra</think> <answer>' if thinking else ''}[check]</answer>"
    trainer = Scripted(tokenizer, lambda context: f"{said} zebra")
    rollout = GameRollout(game, style=PromptStyle.TAGGED, thinking=thinking)
    out = rollout([row["prompt"] for row in game_prompts(game, 1)] * 2, trainer)
    mark = "<think>" if thinking else "<answer>"
    assert all(tokenizer.decode(ids).endswith(f"Assistant: {mark}") for ids in trainer.contexts)
    assert not any("zebra" in tokenizer.decode(ids) for ids in trainer.contexts)  # one move each, then the cards decide
    assert [outcome.endswith("_wins") for outcome in out["game_outcome"] or []] == [True, True]
    for ids, mask in zip(out["completion_ids"] or [], out["env_mask"] or [], strict=True):
        assert pieces(tokenizer, ids, mask) == [(1, said), (0, "</s>")]  # what follows the answer is dropped


@pytest.mark.parametrize(("reply", "whole"), [("Look.\n- defender: I see", True), ("Look", False)])
def test_trl_takes_a_sample_for_truncated_only_at_the_token_limit(tokenizer: Any, reply: str, whole: bool) -> None:
    """It judges by the last token."""
    game, trainer = taboo(), Scripted(tokenizer, lambda context: reply, logprob=-1.0)
    generate = trainer._generate_single_turn
    trainer._generate_single_turn = lambda *call: tuple([one[:-1] for one in part] for part in generate(*call))
    with frozen(game) as opponent:
        rollout = GameRollout(game, opponent, roles=("attacker",), style=PromptStyle.PLAIN)
        out = rollout([row["prompt"] for row in game_prompts(game, 1)], trainer)
    last = [(out[name] or [])[0][-1] for name in ("completion_ids", "env_mask", "logprobs")]
    assert last == [EOS, 0, 0.0] if whole else (last[0] != EOS and last[1:] == [1, -1.0])


def test_a_thought_is_trained_and_may_hold_a_stop_string(tokenizer: Any) -> None:
    game = taboo()
    [stop, *_] = game.stop_strings()
    reply = f"<think>Hm.{stop} Hm.</think>Look.{stop} I see"
    said, shown = first_pieces(tokenizer, game, reply)
    assert said == reply.removesuffix(" I see") and "- attacker: Look.\n" in shown
