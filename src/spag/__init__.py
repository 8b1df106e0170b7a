"""Train language models by self-play of adversarial language games (SPAG, arXiv 2404.10642).

The names below load on first use, so that importing ``spag`` costs nothing.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spag.algorithms.winners import assign_rewards
    from spag.games.taboo.promptfile import upstream_prompt
    from spag.games.taboo.taboo import judge_episode
    from spag.rollout.runner import play
    from spag.storage.episodes import read_episodes, read_samples

__all__ = ["assign_rewards", "judge_episode", "play", "read_episodes", "read_samples", "upstream_prompt"]

_HOMES = {
    "assign_rewards": "spag.algorithms.winners",
    "judge_episode": "spag.games.taboo.taboo",
    "play": "spag.rollout.runner",
    "read_episodes": "spag.storage.episodes",
    "read_samples": "spag.storage.episodes",
    "upstream_prompt": "spag.games.taboo.promptfile",
}

# Whichever module of spag imports transformers first, bitsandbytes and DeepSpeed come with it where they are installed.
# The one warns of a CPU kernel that only play in 4 bits would use, the other of a machine without a GPU, on standard
# output. DeepSpeed sets its own level.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
logging.getLogger("DeepSpeed").addFilter(lambda record: record.module != "real_accelerator")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'spag' has no attribute {name!r}")
