"""Makes the embedder that the settings name."""

from __future__ import annotations

from cluster.embed.batching import ReportingEmbedder
from cluster.embed.settings import EmbedSettings
from cluster.errors import ConfigError

PROVIDERS = ("static", "sentence", "ollama", "openai")


def make_embedder(settings: EmbedSettings) -> ReportingEmbedder:
    """The embedder of `settings`; cheap: a local model is read, a remote one asked, on first use.

    Raises ConfigError, naming the field, for an unknown provider, a missing or unknown model and settings that do not fit.
    """
    if settings.threads < 1:
        raise ConfigError(f"threads must be 1 or more, got {settings.threads}", field="threads")
    if settings.timeout_s <= 0:
        raise ConfigError(f"timeout_s must be above 0, got {settings.timeout_s}", field="timeout_s")
    if settings.provider in {"static", "sentence"}:
        return _local(settings)
    if settings.provider == "ollama":
        from cluster.embed.ollama import ollama_embedder

        return ollama_embedder(settings)
    if settings.provider == "openai":
        from cluster.embed.openai import openai_embedder

        return openai_embedder(settings)
    raise ConfigError(f"unknown embedding provider {settings.provider!r}: one of {', '.join(PROVIDERS)}", field="provider")


def _local(settings: EmbedSettings) -> ReportingEmbedder:
    from cluster.embed.sentence import SentenceEmbedder
    from cluster.embed.static import StaticEmbedder

    embedder = StaticEmbedder(settings.threads) if settings.provider == "static" else SentenceEmbedder(settings.threads)
    if settings.model not in {"", embedder.identity.model}:
        message = f"the {settings.provider} provider has the model {embedder.identity.model} only, not {settings.model!r}"
        raise ConfigError(message, field="model")
    if settings.dimensions not in {0, embedder.identity.dimensions}:
        raise ConfigError(
            f"{embedder.identity.model} has {embedder.identity.dimensions} dimensions, not {settings.dimensions}",
            field="dimensions",
        )
    return embedder
