"""Ollama: POST <url>/api/embed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.embed.catalogue import model_identity, model_limits, model_prefixes, parse_url
from cluster.embed.remote import RemoteEmbedder
from cluster.embed.settings import EmbedSettings

DEFAULT_URL = "http://localhost:11434"
DEFAULT_MODEL = "nomic-embed-text"


class OllamaWire:
    """Ollama's embedding protocol."""

    path = "/api/embed"

    def __init__(self, model: str) -> None:
        self._model = model

    def headers(self) -> Mapping[str, str]:
        """None: Ollama knows no keys."""
        return {}

    def body(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """The request for `texts`. Ollama is told to cut long texts; some versions refuse them all the same."""
        return {"model": self._model, "input": list(texts), "truncate": True}

    def vectors(self, reply: Any, count: int) -> list[Any]:
        """See `Wire.vectors`."""
        entries = reply.get("embeddings") if isinstance(reply, dict) else None
        if not isinstance(entries, list) or len(entries) != count:
            raise ValueError(
                f"asked for {count} vectors, got {len(entries) if isinstance(entries, list) else 'no list of them'}"
            )
        return entries


def ollama_embedder(settings: EmbedSettings, **options: Any) -> RemoteEmbedder:
    """An embedder on Ollama; `options` go to RemoteEmbedder. Raises ConfigError for a bad address or unknown dimensions."""
    model = settings.model or DEFAULT_MODEL
    url = parse_url(settings.url or DEFAULT_URL)
    identity = model_identity("ollama", model, settings.dimensions)
    options.setdefault("limits", model_limits(model, settings.timeout_s))
    return RemoteEmbedder(identity, OllamaWire(model), url, secret=settings.api_key, prefixes=model_prefixes(model), **options)
