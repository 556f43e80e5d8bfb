"""What is known of remote models: dimensions, context and the prefixes that they were trained with."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from cluster.embed.remote import Limits, Prefixes
from cluster.errors import ConfigError
from cluster.model.manifest import VectorIdentity

_NONE = Prefixes()


@dataclass(frozen=True, slots=True)
class _Model:
    dimensions: int
    max_tokens: int
    prefixes: Prefixes = _NONE
    intent: str = "symmetric"


_NOMIC = Prefixes(document="search_document: ", query="search_query: ")
_MXBAI = Prefixes(query="Represent this sentence for searching relevant passages: ")

#: By name without a tag or an owner. Sources: the models' own cards.
_MODELS = {
    "nomic-embed-text": _Model(768, 8192, _NOMIC, "nomic-search"),
    "mxbai-embed-large": _Model(1024, 512, _MXBAI, "mxbai-search"),
    "all-minilm": _Model(384, 256),
    "bge-m3": _Model(1024, 8192),
    "text-embedding-3-small": _Model(1536, 8191),
    "text-embedding-3-large": _Model(3072, 8191),
    "text-embedding-ada-002": _Model(1536, 8191),
}
_UNKNOWN = _Model(0, 8192)


def _known(model: str) -> _Model:
    return _MODELS.get(model.rpartition("/")[2].partition(":")[0], _UNKNOWN)


def model_identity(provider: str, model: str, dimensions: int) -> VectorIdentity:
    """The identity of `model`'s vectors. Raises ConfigError when `dimensions` is 0 and they are not known."""
    if dimensions < 0:
        raise ConfigError(f"dimensions must be 0 or more, got {dimensions}", field="dimensions")
    size = dimensions or _known(model).dimensions
    if not size:
        raise ConfigError(f"the dimensions of {model} are not known here: set them", field="dimensions")
    return VectorIdentity(provider=provider, model=model, dimensions=size, intent=_known(model).intent)


def model_limits(model: str, timeout_s: float) -> Limits:
    """Limits for `model`, with four times the wait for a reply as the time without any."""
    return Limits(max_tokens=_known(model).max_tokens, timeout_s=timeout_s, budget_s=4 * timeout_s)


def model_prefixes(model: str) -> Prefixes:
    """What `model` wants to read before a text."""
    return _known(model).prefixes


def parse_url(url: str) -> str:
    """`url` if it is an absolute HTTP address; raises ConfigError, without a password in it, otherwise."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = url.rpartition("@")[2]
        raise ConfigError(f"the embedder's url must be http:// or https:// and a host, got {shown!r}", field="url")
    return url
