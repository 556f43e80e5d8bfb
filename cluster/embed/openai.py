"""OpenAI and what speaks its protocol: POST <base>/embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.embed.catalogue import model_identity, model_limits, model_prefixes, parse_url
from cluster.embed.remote import RemoteEmbedder
from cluster.embed.settings import EmbedSettings

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "text-embedding-3-small"


class OpenAIWire:
    """OpenAI's embedding protocol. `dimensions` is sent where it is not 0: most compatible servers do not know the field."""

    path = "/embeddings"

    def __init__(self, model: str, api_key: str = "", dimensions: int = 0) -> None:
        self._model = model
        self._api_key = api_key
        self._dimensions = dimensions

    def headers(self) -> Mapping[str, str]:
        """The key, where there is one: servers at home often want none."""
        return {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def body(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """The request for `texts`."""
        shortened = {"dimensions": self._dimensions} if self._dimensions else {}
        return {"model": self._model, "input": list(texts), "encoding_format": "float", **shortened}

    def vectors(self, reply: Any, count: int) -> list[Any]:
        """See `Wire.vectors`. Entries are put in the order of their `index`, whatever order they came in."""
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) and "embedding" in entry for entry in data):
            raise ValueError("no list of embeddings in it")
        if len(data) != count:
            raise ValueError(f"asked for {count} vectors, got {len(data)}")
        places = [entry.get("index") for entry in data]
        if all(place is None for place in places):
            return [entry["embedding"] for entry in data]
        by_place = dict(zip(places, data, strict=True))
        if set(by_place) != set(range(count)):
            raise ValueError(f"the indexes of its {count} vectors are not 0 to {count - 1}, each once")
        return [by_place[place]["embedding"] for place in range(count)]


def openai_embedder(settings: EmbedSettings, **options: Any) -> RemoteEmbedder:
    """An embedder on an OpenAI-compatible server; as `ollama_embedder`."""
    model = settings.model or DEFAULT_MODEL
    url = parse_url(settings.url or DEFAULT_URL)
    identity = model_identity("openai", model, settings.dimensions)
    # Only these models can shorten their vectors; for others a different size is a mistake that the reply will show.
    wire = OpenAIWire(model, settings.api_key, settings.dimensions if model.startswith("text-embedding-3") else 0)
    options.setdefault("limits", model_limits(model, settings.timeout_s))
    return RemoteEmbedder(identity, wire, url, secret=settings.api_key, prefixes=model_prefixes(model), **options)
