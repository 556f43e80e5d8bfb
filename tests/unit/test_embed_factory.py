"""Settings become embedders, or an error that names the field."""

from __future__ import annotations

import pytest

from cluster.embed.factory import make_embedder
from cluster.embed.settings import EmbedSettings
from cluster.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (EmbedSettings(provider="static"), "wordllama/l2-supercat-256/256/text/symmetric/l2"),
        (EmbedSettings(provider="sentence", dimensions=384), "onnx/all-MiniLM-L6-v2-int8/384/text/symmetric/l2"),
        (EmbedSettings(provider="ollama"), "ollama/nomic-embed-text/768/text/nomic-search/l2"),
        (EmbedSettings(provider="ollama", model="mine", dimensions=5), "ollama/mine/5/text/symmetric/l2"),
        (EmbedSettings(provider="openai"), "openai/text-embedding-3-small/1536/text/symmetric/l2"),
        (EmbedSettings(provider="openai", model="BAAI/bge-m3"), "openai/BAAI/bge-m3/1024/text/symmetric/l2"),
    ],
)
def test_settings_name_an_identity(settings: EmbedSettings, key: str) -> None:
    assert make_embedder(settings).identity.key == key


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (EmbedSettings(provider="other"), "provider"),
        (EmbedSettings(provider="static", threads=0), "threads"),
        (EmbedSettings(provider="ollama", timeout_s=0), "timeout_s"),
        (EmbedSettings(provider="static", model="nomic-embed-text"), "model"),
        (EmbedSettings(provider="sentence", dimensions=768), "dimensions"),
        (EmbedSettings(provider="ollama", model="unheard-of"), "dimensions"),
        (EmbedSettings(provider="ollama", dimensions=-1), "dimensions"),
        (EmbedSettings(provider="ollama", url="localhost:11434"), "url"),
        (EmbedSettings(provider="openai", url="file:///etc/passwd"), "url"),
        (EmbedSettings(provider="openai", url="http://[bad"), "url"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_field(settings: EmbedSettings, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_embedder(settings)
    assert caught.value.field == field


def test_a_password_in_a_bad_address_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        make_embedder(EmbedSettings(provider="ollama", url="ftp://mira:hunter2@host"))
    assert "hunter2" not in str(caught.value)
