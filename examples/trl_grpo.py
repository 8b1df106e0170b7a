"""GRPO on Adversarial Taboo with TRL: a model learns to attack and to defend, against itself or a frozen opponent.

pip install '.[trl]'
python examples/trl_grpo.py smollm2-135m --steps 10  # self-play
python examples/trl_grpo.py smollm2-135m --opponent openai:gpt-5-mini  # an endpoint, or any model
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from spag.adapters.opponent import Opponent, engine_of
from spag.adapters.trl import GameRollout, game_prompts, game_reward, role_reward
from spag.core.options import SamplingConfig
from spag.games.registry import get
from spag.models.finding import resolve_model
from spag.models.tokens import PromptStyle


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on a game of spag with TRL")
    parser.add_argument("model", help="a folder, a name on the hub, or smollm2-135m")
    parser.add_argument("--game", default="adversarial_taboo")
    parser.add_argument("--opponent", help="bot:NAME, openai:MODEL or a model; by default the model plays both sides")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("grpo"))
    arguments = parser.parse_args()
    game, folder = get(arguments.game), resolve_model(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Before the opponent's, which loads in a thread of its own: transformers cannot load two models at once.
    model = AutoModelForCausalLM.from_pretrained(folder)
    settings = GRPOConfig(
        str(arguments.output),
        max_steps=arguments.steps,
        per_device_train_batch_size=8,  # two groups of four: the roles take turns within a group
        num_generations=4,
        max_completion_length=32,  # tokens of one utterance, not of a game
        reward_weights=[0.0, 1.0],  # learn from the second, log both
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
    )
    other = arguments.opponent and Opponent(game, engine_of(arguments.opponent, game), SamplingConfig(temperature=1.0))
    with other or nullcontext() as opponent:
        trainer = GRPOTrainer(
            model,
            [game_reward, role_reward],
            settings,
            Dataset.from_list(game_prompts(game, 100)),
            processing_class=tokenizer,
            rollout_func=GameRollout(
                game, opponent, style=PromptStyle.CHAT if tokenizer.chat_template else PromptStyle.PLAIN
            ),
        )
        trainer.train()
    trainer.save_model(str(arguments.output))


if __name__ == "__main__":
    main()
