"""Where an OpenAI-compatible endpoint is, and what goes there with every request: address, key, proxy."""

import ipaddress
import os
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from spag.core.errors import ConfigError

DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_MESSAGE_CHARS = 300  # of a server's own words in an error


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. ``shown`` is ``url`` without what may be secret in it; the key is in no ``repr``."""

    url: str = field(repr=False)
    key: str = field(repr=False)
    shown: str
    is_local: bool

    @classmethod
    def from_environment(cls, base_url: str | None = None) -> Self:
        """Read the key, and the address unless ``base_url`` is given. An endpoint on this machine needs no key. Raises ``ConfigError``."""
        url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        parts = _split(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        is_local = _is_loopback(parts.hostname or "")
        key = os.environ.get("OPENAI_API_KEY", "").strip() or ("none" if is_local else "")
        if not key:
            raise ConfigError(f"OPENAI_API_KEY is not set, and {shown} needs a key: export OPENAI_API_KEY=...")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("OPENAI_API_KEY contains characters that no key has: copy it again")
        return cls(url, key, shown, is_local)

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        parts = urlsplit(self.url)
        return parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions", fragment="").geturl()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request. A name and password in the address take the key's place."""
        key = {} if "@" in urlsplit(self.url).netloc else {"Authorization": f"Bearer {self.key}"}
        return {"Content-Type": "application/json", "Accept": "application/json", **key}

    @property
    def proxy(self) -> str | None:
        """The proxy in the environment; none for an endpoint on this machine. Raises ``ConfigError`` for one that does not speak HTTP."""
        parts, proxies = urlsplit(self.url), getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if not proxy or self.is_local or proxy_bypass(parts.netloc.rpartition("@")[2]):
            return None
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        _split(proxy, f"the proxy for {self.shown} in the environment")
        return proxy

    def redact(self, text: str) -> str:
        """``text`` on one line, shortened, without the key."""
        if self.key != "none":
            text = text.replace(self.key, "***")
        line = " ".join(text.split())
        return line if len(line) <= MAX_MESSAGE_CHARS else line[:MAX_MESSAGE_CHARS] + "..."


def _split(url: str, name: str = "OPENAI_BASE_URL (or base_url)") -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        valid = False
    if not valid:  # the address may contain a password: not shown
        raise ConfigError(f"{name} is not an address like http://localhost:8000/v1")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
