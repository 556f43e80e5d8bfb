"""What an embedder is made from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedSettings:
    """The choice of an embedder, as the configuration has it. The key does not show in its representation."""

    #: "sentence" and "static" are models on this machine; "ollama" and "openai" are asked over HTTP.
    provider: str
    #: A remote model's name; local ones have one model each.
    model: str = ""
    #: 0: what is known of the model.
    dimensions: int = 0
    #: Base address of a remote provider; "" is its usual one.
    url: str = ""
    api_key: str = field(default="", repr=False)
    #: Threads of a local model.
    threads: int = 1
    #: Longest wait for one reply of a remote provider, and for a whole query with all its repeats.
    timeout_s: float = 30.0
