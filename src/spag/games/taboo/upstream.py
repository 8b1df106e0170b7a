"""Rows in the format of the paper's published code (Linear95/SPAG)."""

from typing import Any

from spag.core.episodes import Episode, SampleType, TrainingSample


def upstream_episode(episode: Episode) -> dict[str, Any]:
    """Return an episode as upstream's ``{"history", "target_word", "max_turns"}``."""
    history = [{"role": str(said.role), "content": said.content} for said in episode.history]
    return {"history": history, **{name: episode.task.data[name] for name in ("target_word", "max_turns")}}


def upstream_sample(sample: TrainingSample) -> dict[str, Any]:
    """Return a sample as upstream's ``{"query", "target", "reward", "weight", "role"}``; SFT rows carry a type instead
    of a role, and a sample without a role has neither.
    """
    fields = {"query": sample.prompt, "target": sample.completion, "reward": sample.reward, "weight": sample.weight}
    if sample.type is SampleType.SFT:
        return {**fields, "type": "sft"}
    return fields if sample.role is None else {**fields, "role": str(sample.role)}
