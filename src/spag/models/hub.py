"""The first question to the Hugging Face hub: whether it answers at all. Imports no torch.

The hub's client asks for an uncached model six times, which takes 23 s where connections fail at once, and minutes
where a firewall drops them. It has no setting for that, so we ask first, twice. Its retries of everything else stay:
of answers that report an overloaded hub, and of downloads.
"""

import time

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2

from spag.core.errors import ModelError, first_line

_FILES = ("config.json", "adapter_config.json")
_TRIES, _PAUSE_S = 2, 1.0


def check_reachable(name: str) -> None:
    """Raise ``ModelError`` if ``name`` is not cached and the hub gives no answer. Loading reports all other errors."""
    for tries_left in reversed(range(_TRIES)):
        try:
            if not any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES):
                get_hf_file_metadata(hf_hub_url(name, _FILES[0]))
            return
        except HfHubHTTPError:
            return  # an answer
        except HTTPError as error:
            if not tries_left:
                what = "cannot be loaded (neither a local folder nor a hub model that can be reached)"
                fix = "correct the name, connect to the network, or name a local folder"
                raise ModelError(f"{name}: {what}: {first_line(error)}; {fix}") from error
            time.sleep(_PAUSE_S)
        except (OSError, ValueError):  # the hub's client is set offline; a name that no model can have
            return
