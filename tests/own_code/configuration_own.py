"""Code as a model's repository brings it: the config."""

from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own_code"
