"""Who a player is, for the record of every game: a model by its contents, an endpoint by its address, a bot by its name."""

from spag.config.schema import ModelConfig
from spag.engines.bot import BOT_PREFIX
from spag.engines.opening import OPENAI_PREFIX


def identity_of(model: ModelConfig) -> dict[str, str]:
    """Return what decides the replies of ``model``; equal for copies of a model under other names.

    Raises ``ModelError`` for a path that is no model, ``ConfigError`` for an endpoint's faulty address.
    """
    if model.name.startswith(BOT_PREFIX):
        return {"bot": model.name.removeprefix(BOT_PREFIX)}
    if model.name.startswith(OPENAI_PREFIX):
        from spag.engines.openai.client import shown_address  # noqa: PLC0415 - imports HTTP libraries

        return {"endpoint": shown_address(), "model": model.name.removeprefix(OPENAI_PREFIX)}
    from spag.models.identity import weights_digest  # noqa: PLC0415 - imports torch

    return {"weights": weights_digest(model.name), "dtype": model.dtype, "prompt_style": model.prompt_style}
