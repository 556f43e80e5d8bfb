"""Embedding over HTTP, whatever the provider: packing, repeats, refusals and the check of every reply.

A request is packed by items and by estimated tokens. The answer decides what follows:

    vectors                      each is checked: a bad one is that text's failure, a bad reply is everybody's
    refused (400, 413, 422)      the same request is never sent again: it is halved, down to single texts; a single text that
                                 is too long is shortened, one that is refused for another reason is a failure
    busy (429, 5xx, no answer)   sent again after a pause that doubles, until no request has got through for the time budget
    anything else (401, 404 ...) EmbedderError
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import numpy as np
import numpy.typing as npt

from cluster.embed.batching import BLANK, EmbedReport, cut, estimate_tokens, no_vectors, pack
from cluster.errors import EmbedderError
from cluster.model.manifest import VectorIdentity
from cluster.text import is_blank

log = logging.getLogger(__name__)

#: Statuses that refuse what was sent, as opposed to who sent it or when.
_REFUSED = frozenset({400, 413, 422})
#: Statuses that may pass.
_BUSY = frozenset({408, 409, 425, 429})
#: What providers say of a text or request that is too long, in their own many words.
_TOO_LONG = re.compile(r"context|token|too (long|large|many)|length|exceed|maximum|truncat", re.IGNORECASE)
#: What Ollama says, as a server error, when the model's output cannot be written as JSON. It would say it again.
_NOT_JSON = re.compile(r"unsupported value: (NaN|[+-]?Inf)")

#: A text is shortened to this share at a time, so that the vector is of almost all that fits.
_SHORTEN = 0.8
#: Requests for one text before it is given up as too long: 0.8 ** 20 is about 1 percent of it.
_SHORTENINGS = 20
#: Refusals for another reason than length, without any success before: then it is not the texts.
_HOPELESS = 3
#: Pause before the first repeat and the longest one, in seconds.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0


class Wire(Protocol):
    """What a provider's protocol looks like."""

    path: str

    def headers(self) -> Mapping[str, str]: ...
    def body(self, texts: Sequence[str]) -> Mapping[str, Any]: ...
    def vectors(self, reply: Any, count: int) -> list[Any]:
        """One entry a text, in the order of the request; raises ValueError, saying what is wrong, for another reply."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is sent at once, and how long it may take."""

    #: Tokens of one text that the model reads.
    max_tokens: int = 8192
    max_items: int = 64
    #: Estimated tokens of one request.
    max_request_tokens: int = 16_384
    #: Longest wait for one reply, in seconds; for a query, of all repeats together.
    timeout_s: float = 30.0
    #: Longest time without a reply that was of use, in seconds, while documents are embedded.
    budget_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """What a model wants to read before a document and before a query; models without a wish have neither."""

    document: str = ""
    query: str = ""


class RemoteEmbedder:
    """An embedder over HTTP. Safe to use from several threads. Its representation shows neither key nor password."""

    def __init__(
        self,
        identity: VectorIdentity,
        wire: Wire,
        url: str,
        *,
        secret: str = "",
        limits: Limits | None = None,
        prefixes: Prefixes | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.identity = identity
        self.limits = limits or Limits()
        self._wire = wire
        self._prefixes = prefixes or Prefixes()
        self._secret = secret
        self._sleep = sleep
        self._monotonic = monotonic
        base = httpx.URL(url)
        self._address = f"{base.scheme}://{base.netloc.decode().rpartition('@')[2]}{base.path}"
        self._url = f"{url.rstrip('/')}{wire.path}"
        # A proxy for the outside has nothing to do with a server on this machine.
        outside = base.host not in {"localhost", "127.0.0.1", "::1"}
        self._client = httpx.Client(transport=transport, trust_env=outside, follow_redirects=False)
        # The port has no `close`: connections end with the embedder that nobody needs any more.
        self.close = weakref.finalize(self, self._client.close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity.key!r}, {self._address!r})"

    @property
    def max_tokens(self) -> int:
        """Tokens of one text that the model reads; what is longer is cut there."""
        return self.limits.max_tokens

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `Embedder.embed`. Each text without a vector is logged with its position and the reason."""
        report = self.embed_items(texts)
        for position, reason in report.failures.items():
            log.warning("text has no vector", extra={"action": "embed_item_failed", "position": position, "reason": reason})
        return report.vectors

    def embed_query(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As `embed`, with the model's query side, and within `timeout_s` as a whole."""
        return self._run(texts, self._prefixes.query, self.limits.timeout_s).vectors

    def embed_items(self, texts: Sequence[str]) -> EmbedReport:
        """As `embed`, with the reason for each row of NaN and the texts of which only a part was read."""
        return self._run(texts, self._prefixes.document, self.limits.budget_s)

    def _run(self, texts: Sequence[str], prefix: str, budget_s: float) -> EmbedReport:
        call = _Call(vectors=no_vectors(len(texts), self.identity.dimensions), budget_s=budget_s)
        for position, text in enumerate(texts):
            if is_blank(text):
                call.failures[position] = BLANK
            else:
                call.texts[position] = prefix + cut(text, self.limits.max_tokens)
        positions = list(call.texts)
        costs = [min(estimate_tokens(call.texts[position]), self.limits.max_tokens) for position in positions]
        call.deadline = self._monotonic() + budget_s
        call.max_items = self.limits.max_items
        for group in pack(costs, self.limits.max_items, self.limits.max_request_tokens):
            for start in range(0, len(group), call.max_items):
                self._settle(call, [positions[place] for place in group[start : start + call.max_items]])
        return EmbedReport(vectors=call.vectors, failures=call.failures, shortened=call.shortened)

    def _settle(self, call: _Call, group: list[int]) -> None:
        """Leaves each of `group` with a vector or a reason."""
        refusal = self._request(call, group)
        if refusal is None:
            return
        if len(group) == 1:
            self._settle_single(call, group[0], refusal)
            return
        before = len(call.failures) + len(call.shortened)
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            self._settle(call, half)
        if len(call.failures) + len(call.shortened) == before:
            # Nothing was wrong with any of them: it was the number, and the next requests need not learn it again.
            call.max_items = min(call.max_items, max(1, len(group) // 2))

    def _settle_single(self, call: _Call, position: int, refusal: _Refusal) -> None:
        for _ in range(_SHORTENINGS):
            length = int(len(call.texts[position]) * _SHORTEN)
            if not refusal.too_long or not length:
                break
            call.texts[position] = call.texts[position][:length]
            following = self._request(call, [position])
            if following is None:
                call.shortened[position] = length
                log.info("text was shortened", extra={"action": "embed_item_shortened", "position": position, "kept": length})
                return
            refusal = following
        call.failures[position] = refusal.reason
        call.refusals += not refusal.too_long
        if call.refusals >= _HOPELESS and not call.served:
            raise EmbedderError(f"{self._address} refuses every text: {refusal.reason}")

    def _request(self, call: _Call, group: list[int]) -> _Refusal | None:
        """Sends the group until there is an answer; stores its vectors or returns why it was refused."""
        body = json.dumps(self._wire.body([call.texts[position] for position in group]), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", **self._wire.headers()}
        pause = _FIRST_PAUSE_S
        while True:
            outcome = self._send(call, body, headers)
            if isinstance(outcome, httpx.Response) and outcome.is_success:
                self._accept(call, group, outcome)
                call.deadline = self._monotonic() + call.budget_s
                return None
            if isinstance(outcome, _Refusal):
                return outcome
            if isinstance(outcome, httpx.Response):
                reason, asked = self._reason(outcome), _retry_after(outcome)
            else:
                reason, asked = outcome, None
            # Spread, so that several processes do not come back together; a provider that names a time is obeyed.
            wait = min(asked if asked is not None else pause * (0.75 + random.random() / 2), _LONGEST_PAUSE_S)  # noqa: S311
            if self._monotonic() + wait >= call.deadline:
                raise EmbedderError(f"{self._address} did not embed within {call.budget_s:g} s: {reason}")
            log.info(
                "embedder is busy, asking again", extra={"action": "embed_retry", "reason": reason, "wait_s": round(wait, 2)}
            )
            self._sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _send(self, call: _Call, body: bytes, headers: Mapping[str, str]) -> httpx.Response | _Refusal | str:
        """A success or a busy status, a refusal, or why there was no answer. Raises EmbedderError where repeating is no use."""
        left = max(0.05, min(self.limits.timeout_s, call.deadline - self._monotonic()))
        try:
            response = self._client.post(self._url, content=body, headers=dict(headers), timeout=left)
        except httpx.TimeoutException:
            return f"no answer within {left:.3g} s"
        except httpx.TransportError as error:
            return f"no connection: {self._masked(str(error)) or type(error).__name__}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EmbedderError(f"{self._address} cannot be asked: {self._masked(str(error))}") from error
        status = response.status_code
        reason = "" if response.is_success else self._reason(response)
        if status in _REFUSED or (status >= 500 and _NOT_JSON.search(reason)):
            return _Refusal(reason, too_long=status == 413 or bool(_TOO_LONG.search(reason)))
        if status >= 500 and "context length" in reason:
            return _Refusal(reason, too_long=True)
        if response.is_success or status in _BUSY or status >= 500:
            return response
        raise EmbedderError(f"{self._address} answered {reason}")

    def _accept(self, call: _Call, group: list[int], response: httpx.Response) -> None:
        try:
            entries = self._wire.vectors(response.json(), len(group))
        except ValueError as error:
            raise EmbedderError(f"{self._address} gave an unusable reply: {self._masked(str(error))[:300]}") from error
        faults: dict[int, str] = {}
        for position, entry in zip(group, entries, strict=True):
            vector, fault = unit_vector(entry, self.identity)
            if fault:
                faults[position] = fault
            else:
                call.vectors[position] = vector
        sizes = [fault for fault in faults.values() if "dimensions" in fault]
        if len(sizes) == len(group):
            raise EmbedderError(f"{self._address} gave an unusable reply: {sizes[0]}")
        call.failures.update(faults)
        call.served += len(group)

    def _reason(self, response: httpx.Response) -> str:
        """Status and the provider's own words, at most 300 characters of them."""
        try:
            words = response.json()["error"]
            words = words.get("message", words) if isinstance(words, dict) else words
        except (ValueError, KeyError, TypeError):
            words = response.text
        return f"HTTP {response.status_code}: {self._masked(' '.join(str(words).split()))[:300]}"

    def _masked(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


@dataclass(slots=True)
class _Call:
    """The state of one call of `embed`."""

    vectors: npt.NDArray[np.float32]
    budget_s: float
    texts: dict[int, str] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    shortened: dict[int, int] = field(default_factory=dict)
    #: When to give up, unless a reply comes before.
    deadline: float = 0.0
    #: Items of the largest request that this provider takes, as far as is known.
    max_items: int = 1
    served: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    too_long: bool


def unit_vector(entry: Any, identity: VectorIdentity) -> tuple[npt.NDArray[np.float32], str]:
    """The provider's numbers as a unit vector, float32 of shape (dimensions,), and "": or an empty one and what is wrong."""
    none = np.empty(0, dtype=np.float32)
    try:
        vector = np.asarray(entry, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return none, "the provider's vector is not a list of numbers"
    if vector.ndim != 1:
        return none, "the provider's vector is not a list of numbers"
    if vector.size != identity.dimensions:
        return none, f"the provider's vector has {vector.size} dimensions, {identity.key} has {identity.dimensions}"
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        return none, "the provider's vector contains NaN or infinity"
    if length == 0:
        return none, "the provider's vector is all zeros"
    return (vector / length).astype(np.float32), ""


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the provider asks to wait; None where it does not say, or says it as a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if re.fullmatch(r"\d{1,6}(\.\d+)?", value) else None
