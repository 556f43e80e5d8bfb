"""One suite over all embedders, and one more over those that ask a server which fails in its providers' ways."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tokenizers

from cluster.embed.batching import ReportingEmbedder, embed_cached
from cluster.embed.cache import MemoryVectorCache
from cluster.embed.factory import make_embedder
from cluster.embed.models import SENTENCE_TOKENIZER, verified_path
from cluster.embed.ollama import ollama_embedder
from cluster.embed.openai import openai_embedder
from cluster.embed.remote import Limits, RemoteEmbedder
from cluster.embed.sentence import SentenceEmbedder
from cluster.embed.settings import EmbedSettings
from cluster.embed.static import StaticEmbedder
from cluster.errors import EmbedderError
from cluster.ports import Embedder
from tests.support.embedding_server import (
    Answer,
    EmbeddingServer,
    always,
    hang,
    ollama_error,
    openai_error,
    running,
    sent,
    success,
)

KEY = "sk-not-a-real-key"
REMOTE = {"ollama": ollama_embedder, "openai": openai_embedder}


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with running(EmbeddingServer(api_key=KEY)) as up:
        yield up


@pytest.fixture
def clock() -> Time:
    return Time()


def connect(provider: str, server: EmbeddingServer, clock: Time, **options: Any) -> RemoteEmbedder:
    url = server.url if provider == "ollama" else f"{server.url}/v1"
    settings = EmbedSettings(provider=provider, model="stub-model", dimensions=server.dimensions, url=url, api_key=KEY)
    return REMOTE[provider](settings, sleep=clock.sleep, monotonic=clock.monotonic, **options)


@pytest.fixture(scope="module")
def local() -> dict[str, Embedder]:
    return {"sentence": SentenceEmbedder(), "static": StaticEmbedder()}


@pytest.fixture(params=["sentence", "static", "ollama", "openai"])
def embedder(
    request: pytest.FixtureRequest, local: dict[str, Embedder], server: EmbeddingServer, clock: Time
) -> Iterator[ReportingEmbedder]:
    if request.param in local:
        yield local[request.param]  # type: ignore[misc]
        return
    remote = connect(request.param, server, clock)
    yield remote
    remote.close()


TEXTS = ["def retry(request):", "A cat sat on the mat.", "x", "def retry(request):"]


def test_rows_are_unit_vectors_in_the_order_of_the_texts(embedder: ReportingEmbedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (4, embedder.identity.dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[3], atol=1e-6)
    assert vectors[0] @ vectors[1] < 0.99
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    assert embedder.max_tokens > 0
    assert isinstance(embedder, ReportingEmbedder)


def test_no_texts_give_no_rows(embedder: ReportingEmbedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.identity.dimensions)
    assert embedder.embed_query([]).shape == (0, embedder.identity.dimensions)


def test_a_text_without_meaning_gets_nan_and_a_reason(embedder: ReportingEmbedder) -> None:
    texts = ["", "word", " \n\t", "\u200b\ufeff", "\x00"]
    report = embedder.embed_items(texts)
    assert np.isnan(report.vectors).all(axis=1).tolist() == [True, False, True, True, True]
    assert sorted(report.failures) == [0, 2, 3, 4]
    assert all(report.failures.values())
    assert np.isnan(embedder.embed_query([""])).all()


def test_any_text_at_all_can_be_embedded(embedder: ReportingEmbedder) -> None:
    texts = [
        "a\x00b",
        "cut \ud83d off",
        "文档の検索",
        "👩‍👩‍👧 family",
        "e\u0301te\u0301",
        ".x" * 30_000,
        "word " * 12_000,
        "漢" * 60_000,
    ]
    report = embedder.embed_items(texts)
    np.testing.assert_allclose(np.linalg.norm(report.vectors, axis=1), 1, atol=1e-5)
    assert report.failures == {}


def test_queries_of_a_symmetric_model_are_embedded_like_documents(embedder: ReportingEmbedder) -> None:
    assert embedder.identity.intent == "symmetric"
    np.testing.assert_allclose(embedder.embed_query(["where is it"]), embedder.embed(["where is it"]), atol=1e-6)


def test_threads_may_share_an_embedder(embedder: ReportingEmbedder) -> None:
    expected = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: embedder.embed(TEXTS), range(4)):
            np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize("make", [SentenceEmbedder, StaticEmbedder])
def test_local_models_load_once_and_give_the_same_on_more_threads(make: Any, local: dict[str, Embedder]) -> None:
    threaded = make(threads=2)
    threaded.load()
    texts = ["one", "two words", "three whole words", "four", "a longer sentence about the retry of a request", "one"]
    single = local["sentence" if make is SentenceEmbedder else "static"]
    np.testing.assert_allclose(threaded.embed(texts), single.embed(texts), atol=1e-5)


@pytest.mark.parametrize("name", ["sentence", "static"])
def test_local_models_know_what_belongs_together(name: str, local: dict[str, Embedder]) -> None:
    query = local[name].embed_query(["how do I try a failed request again"])[0]
    near, far = local[name].embed(["Retrying requests that have failed", "The cathedral was built of limestone"])
    assert query @ near > query @ far + 0.2


def test_a_sentence_vector_is_the_normalised_mean_over_the_attention_mask(local: dict[str, Embedder]) -> None:
    embedder = local["sentence"]
    assert isinstance(embedder, SentenceEmbedder)
    session = embedder._parts()[0]
    tokenizer = tokenizers.Tokenizer.from_file(str(verified_path(SENTENCE_TOKENIZER)))
    texts = ["retry a failed request", "x"]
    # The file pads by itself, to 128 tokens.
    encoded = tokenizer.encode_batch(texts)
    ids = np.array([one.ids for one in encoded])
    mask = np.array([one.attention_mask for one in encoded])
    assert ids.shape == (2, 128)
    hidden = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})[0]
    means = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.embed(texts), expected, atol=1e-5)


def test_words_past_the_limit_do_not_count(local: dict[str, Embedder]) -> None:
    head = "word " * 254
    vectors = local["sentence"].embed([head, head + "other " * 3000, head.removesuffix("word ") + "other"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert vectors[0] @ vectors[2] < 1 - 1e-5


@pytest.fixture(params=sorted(REMOTE))
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refusal(provider: str, status: int, message: str) -> Answer:
    return (ollama_error if provider == "ollama" else openai_error)(status, message)


def normalised(server: EmbeddingServer, text: str) -> np.ndarray:
    vector = np.array(server.vector(text))
    return vector / np.linalg.norm(vector)


def assert_nothing_refused_was_sent_again(server: EmbeddingServer) -> None:
    refused = [tuple(texts) for texts in sent(server, 400)]
    for place, (_, texts, status) in enumerate(server.requests):
        earlier = [tuple(before) for _, before, answered in server.requests[:place] if answered == 400]
        assert tuple(texts) not in earlier, (status, texts)
    assert refused


def test_one_long_item_costs_nobody_else_a_vector(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.max_item_tokens = 8192
    texts = [f"text number {number}" for number in range(50)]
    texts[17], texts[18] = "x" * 60_000, "hi"
    report = connect(provider, server, clock).embed_items(texts)
    assert report.failures == {}
    for number, text in enumerate(texts):
        if number != 17:
            np.testing.assert_allclose(report.vectors[number], normalised(server, text), atol=1e-6)
    kept = report.shortened[17]
    assert list(report.shortened) == [17]
    assert 0.8 * 4 * 8192 <= kept < 4 * 8193
    np.testing.assert_allclose(report.vectors[17], normalised(server, "x" * kept), atol=1e-6)
    assert_nothing_refused_was_sent_again(server)


@pytest.mark.parametrize("fill", ["word ", "漢字検索", ".a{b:c;d:#ef}"])
def test_a_cap_on_the_tokens_of_a_request_is_found(fill: str, provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.count_tokens = lambda text: len(text) // (5 if fill == "word " else 1) + 1
    server.max_request_tokens = 1000
    unit_tokens = server.count_tokens(fill) - 1
    texts = [(fill * (99 // unit_tokens)) + f"{number:02}" for number in range(40)]
    report = connect(provider, server, clock).embed_items(texts)
    assert report.failures == {}
    assert np.isfinite(report.vectors).all()
    assert len({texts for _, input_, status in server.requests if status == 200 for texts in input_}) == 40
    assert_nothing_refused_was_sent_again(server)


def test_a_text_too_long_may_be_called_a_server_error(provider: str, server: EmbeddingServer, clock: Time) -> None:
    answer = refusal(provider, 500, "the input length exceeds the context length")
    server.fault = lambda _path, body: answer if max(len(text) for text in body["input"]) > 1000 else "normal"
    report = connect(provider, server, clock).embed_items(["short", "a" * 1100])
    assert list(report.shortened) == [1]
    assert clock.slept == []


def test_texts_at_the_limit_are_embedded_and_one_token_more_is_cut(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.max_item_tokens = 100
    texts = ["a" * (4 * tokens) for tokens in (99, 100, 101)]
    report = connect(provider, server, clock).embed_items(texts)
    assert report.failures == {}
    assert list(report.shortened) == [2]
    assert np.isfinite(report.vectors).all()
    assert_nothing_refused_was_sent_again(server)


def test_a_cap_on_the_items_of_a_request_is_found_and_remembered(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.max_items = 10
    texts = [f"item {number}" for number in range(320)]
    report = connect(provider, server, clock).embed_items(texts)
    np.testing.assert_allclose(report.vectors, [normalised(server, text) for text in texts], atol=1e-6)
    # 64, 32 and 16 are refused once each or for a half, and not in every one of five groups.
    assert len(sent(server, 400)) <= 8
    assert_nothing_refused_was_sent_again(server)


def test_a_text_that_is_refused_at_any_length_is_named(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.fault = lambda _path, body: (
        refusal(provider, 400, "the input length exceeds the context length") if body["input"][-1][0] == "!" else "normal"
    )
    report = connect(provider, server, clock).embed_items(["good", "!" * 50])
    assert list(report.failures) == [1]
    assert "context length" in report.failures[1]
    assert np.isnan(report.vectors[1]).all()
    assert np.isfinite(report.vectors[0]).all()


def test_what_is_refused_for_its_content_is_named_and_not_cut(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.fault = lambda _path, body: refusal(provider, 400, "bad word") if "rude" in body["input"] else "normal"
    report = connect(provider, server, clock).embed_items(["good", "rude", "fine"])
    assert report.failures == {1: "HTTP 400: bad word"}
    assert len(sent(server, 400)) <= 3


def test_a_provider_that_refuses_everything_is_given_up_on(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.fault = always(refusal(provider, 400, "this model does not embed"))
    with pytest.raises(EmbedderError, match="does not embed"):
        connect(provider, server, clock).embed([f"text {number}" for number in range(64)])
    assert len(server.requests) < 20


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_provider_is_asked_again(status: int, provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.faults = [always(refusal(provider, status, "busy"))] * 3
    vectors = connect(provider, server, clock).embed(["one", "two"])
    np.testing.assert_allclose(vectors[1], normalised(server, "two"), atol=1e-6)
    assert len(clock.slept) == 3
    assert clock.slept == sorted(clock.slept)


def test_a_busy_provider_is_obeyed_about_when_to_come_back(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.faults = [always((429, {"Retry-After": "7"}, b"")), always((429, {"Retry-After": "9999"}, b""))]
    connect(provider, server, clock).embed(["one"])
    assert clock.slept == [7.0, 15.0]


@pytest.mark.parametrize("fault", [(500, {}, b"<html>oops</html>"), None])
def test_a_provider_that_stays_away_is_an_error_within_the_budget(
    fault: Answer, provider: str, server: EmbeddingServer, clock: Time
) -> None:
    server.fault = always(fault)
    embedder = connect(provider, server, clock, limits=Limits(timeout_s=5, budget_s=60))
    with pytest.raises(EmbedderError, match=r"did not embed within 60 s: (HTTP 500|no connection)"):
        embedder.embed(["one"])
    assert sum(clock.slept) < 60
    assert max(clock.slept) <= 15
    asked = len(server.requests)
    clock.slept.clear()
    with pytest.raises(EmbedderError, match="within 5 s"):
        embedder.embed_query(["one"])
    assert sum(clock.slept) < 5
    assert len(server.requests) - asked < 6
    server.fault = None
    assert np.isfinite(embedder.embed_query(["one"])).all()


def test_a_slow_provider_is_not_waited_for(provider: str, server: EmbeddingServer) -> None:
    server.fault = hang(server)
    embedder = connect(provider, server, Time(), limits=Limits(timeout_s=0.2, budget_s=0.4))
    with pytest.raises(EmbedderError, match="no answer within"):
        embedder.embed_query(["one"])


def test_nobody_listening_is_an_error(provider: str, clock: Time) -> None:
    with socket.socket() as reserved:
        # Bound but not listening: connections are refused, and nobody else takes the port.
        reserved.bind(("127.0.0.1", 0))
        nobody = EmbeddingServer(url=f"http://127.0.0.1:{reserved.getsockname()[1]}")
        with pytest.raises(EmbedderError, match="no connection"):
            connect(provider, nobody, clock).embed(["one"])


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_repeating_cannot_help_is_an_error_at_once(
    status: int, provider: str, server: EmbeddingServer, clock: Time
) -> None:
    server.fault = always(refusal(provider, status, f"model not found for {KEY}"))
    with pytest.raises(EmbedderError, match=f"HTTP {status}: model not found") as caught:
        connect(provider, server, clock).embed(["one"])
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


def test_neither_a_wrong_key_nor_a_password_is_shown(server: EmbeddingServer, clock: Time) -> None:
    server.api_key = "another"
    embedder = connect("openai", server, clock)
    with pytest.raises(EmbedderError, match=r"Incorrect API key provided: \*\*\*"):
        embedder.embed(["one"])
    assert KEY not in repr(embedder)
    assert KEY not in repr(EmbedSettings(provider="openai", api_key=KEY))
    url = server.url.replace("http://", "http://mira:hunter2@")
    with_password = ollama_embedder(EmbedSettings(provider="ollama", model="m", dimensions=8, url=url))
    assert "hunter2" not in repr(with_password)
    assert np.isfinite(with_password.embed(["one"])).all()


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ([math.nan] * 8, "NaN"),
        ([math.inf] * 8, "infinity"),
        ([1e308] * 8, "infinity"),
        ([0.0] * 8, "zeros"),
        ([1.0] * 7, "7 dimensions"),
        ([], "0 dimensions"),
        (None, "not a list of numbers"),
        (["a"] * 8, "not a list of numbers"),
    ],
)
def test_a_bad_vector_is_the_failure_of_its_text_alone(
    broken: Any, word: str, provider: str, server: EmbeddingServer, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    server.rewrite = lambda texts, vectors: [
        broken if text == "bad" else vector for text, vector in zip(texts, vectors, strict=True)
    ]
    embedder = connect(provider, server, clock)
    with caplog.at_level(logging.WARNING):
        vectors = embedder.embed(["one", "bad", "three"])
    assert np.isnan(vectors[1]).all()
    np.testing.assert_allclose(vectors[[0, 2]], [normalised(server, "one"), normalised(server, "three")], atol=1e-6)
    logged = [record for record in caplog.records if getattr(record, "action", "") == "embed_item_failed"]
    assert [record.position for record in logged] == [1]  # type: ignore[attr-defined]
    assert word in logged[0].reason  # type: ignore[attr-defined]


def test_a_vector_that_a_server_cannot_write_costs_nobody_else_one(provider: str, server: EmbeddingServer, clock: Time) -> None:
    answer = refusal(provider, 500, "failed to encode response: json: unsupported value: NaN")
    server.fault = lambda _path, body: answer if "bad" in body["input"] else "normal"
    report = connect(provider, server, clock).embed_items(["one", "bad", "three", "four"])
    assert list(report.failures) == [1]
    assert "unsupported value: NaN" in report.failures[1]
    assert clock.slept == []


def test_vectors_of_another_size_are_an_error_with_both_sizes(provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.rewrite = lambda texts, vectors: [[1.0] * 4 for _ in texts]
    with pytest.raises(EmbedderError, match=r"4 dimensions, .*stub-model/8/.* has 8"):
        connect(provider, server, clock).embed(["one", "two"])


@pytest.mark.parametrize("change", [lambda vectors: vectors[:-1], lambda vectors: [*vectors, vectors[0]], lambda vectors: []])
def test_a_reply_of_another_length_is_an_error(
    change: Callable[[list[Any]], list[Any]], provider: str, server: EmbeddingServer, clock: Time
) -> None:
    server.rewrite = lambda _texts, vectors: change(vectors)
    with pytest.raises(EmbedderError, match="asked for 3 vectors, got"):
        connect(provider, server, clock).embed(["one", "two", "three"])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"embeddings": {}, "data": [1]}', b"<html>"])
def test_a_reply_that_is_none_is_an_error(content: bytes, provider: str, server: EmbeddingServer, clock: Time) -> None:
    server.fault = always((200, {"Content-Type": "application/json"}, content))
    with pytest.raises(EmbedderError, match="unusable reply"):
        connect(provider, server, clock).embed(["one"])


def test_a_reordered_reply_is_put_right(server: EmbeddingServer, clock: Time) -> None:
    server.order = lambda entries: entries[::-1]
    texts = ["one", "two", "three"]
    vectors = connect("openai", server, clock).embed(texts)
    np.testing.assert_allclose(vectors, [normalised(server, text) for text in texts], atol=1e-6)
    server.order = lambda entries: [{**entry, "index": 0} for entry in entries]
    with pytest.raises(EmbedderError, match="each once"):
        connect("openai", server, clock).embed(texts)


def test_the_protocols_are_spoken_as_their_providers_describe_them(server: EmbeddingServer, clock: Time) -> None:
    for provider in REMOTE:
        connect(provider, server, clock).embed(["one"])
    assert [path for path, _, _ in server.requests] == ["/api/embed", "/v1/embeddings"]
    assert server.bodies == [
        {"model": "stub-model", "input": ["one"], "truncate": True},
        {"model": "stub-model", "input": ["one"], "encoding_format": "float"},
    ]


def test_a_model_that_wants_prefixes_gets_them(server: EmbeddingServer) -> None:
    server.dimensions = 768
    embedder = make_embedder(EmbedSettings(provider="ollama", model="nomic-embed-text:latest", url=server.url))
    embedder.embed(["one"])
    embedder.embed_query(["one"])
    assert sent(server) == [["search_document: one"], ["search_query: one"]]
    assert embedder.identity.intent != "symmetric"


def test_what_was_embedded_before_a_failure_is_kept_and_not_asked_for_again(
    provider: str, server: EmbeddingServer, clock: Time
) -> None:
    cache = MemoryVectorCache()
    texts = {f"hash{number}": f"text {number}" for number in range(600)} | {"blank": " "}
    server.fault = lambda _path, body: refusal(provider, 401, "revoked") if "text 300" in body["input"] else "normal"
    embedder = connect(provider, server, clock)
    with pytest.raises(EmbedderError):
        embed_cached(embedder, cache, texts)
    server.fault = None
    asked = len(server.requests)
    done: list[int] = []
    result = embed_cached(embedder, cache, texts, done.append)
    again = {text for _, input_, _ in server.requests[asked:] for text in input_}
    assert "text 0" not in again
    assert len(result.vectors) == 600
    assert list(result.failures) == ["blank"]
    np.testing.assert_allclose(result.vectors["hash7"], normalised(server, "text 7"), atol=1e-6)
    assert done[-1] == 601


def test_a_connection_is_kept_between_requests(server: EmbeddingServer, clock: Time) -> None:
    threads: set[int] = set()

    def note(_path: str, _body: dict[str, Any]) -> str:
        threads.add(threading.get_ident())
        return "normal"

    server.fault = note
    embedder = connect("ollama", server, clock)
    for _ in range(3):
        embedder.embed(["one"])
    assert len(threads) == 1


def test_success_is_what_the_server_says_it_is(server: EmbeddingServer, clock: Time) -> None:
    server.fault = always(success({"embeddings": [server.vector("other")]}))
    np.testing.assert_allclose(connect("ollama", server, clock).embed(["one"])[0], normalised(server, "other"), atol=1e-6)
