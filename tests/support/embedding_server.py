"""An embedding server on this machine that speaks Ollama's and OpenAI's protocol, and fails in their ways on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

#: What a fault answers: (status, headers, body). None: the connection is dropped without an answer.
Answer = tuple[int, dict[str, str], bytes] | None
#: Decides on a request (path, body); returning "normal" leaves it to the server.
Fault = Callable[[str, dict[str, Any]], Answer | str]


@dataclass
class EmbeddingServer:
    """Behaviour and record of the server. Change the fields while it runs."""

    dimensions: int = 8
    #: Real tokens: a server may count in another way than its clients guess.
    count_tokens: Callable[[str], int] = lambda text: max(1, len(text) // 4)
    max_item_tokens: int | None = None
    max_request_tokens: int | None = None
    max_items: int | None = None
    api_key: str | None = None
    #: Rewrites the list of vectors of one request: (texts, vectors) -> vectors.
    rewrite: Callable[[list[str], list[Any]], list[Any]] | None = None
    #: Entries of `data` in the order in which OpenAI's protocol sends them.
    order: Callable[[list[Any]], list[Any]] = lambda entries: entries
    #: One for each coming request, used up in turn; then all is normal.
    faults: list[Fault] = field(default_factory=list)
    #: For every request that no entry of `faults` is left for.
    fault: Fault | None = None
    #: (path, input, status) of each answered request.
    requests: list[tuple[str, list[str], int]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    #: Set to let go of requests that hang.
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def vector(self, text: str) -> list[float]:
        """The vector of `text`: of any length, the same every time, different from others'."""
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        return [float(value) for value in 3 * np.random.default_rng(seed).standard_normal(self.dimensions)]

    def answer(self, path: str, headers: Any, body: dict[str, Any]) -> Answer:
        """What one request is answered."""
        with self.lock:
            self.bodies.append(body)
            fault = self.faults.pop(0) if self.faults else self.fault
        decided = fault(path, body) if fault is not None else "normal"
        answer = self._normal(path, headers, body) if isinstance(decided, str) else decided
        with self.lock:
            self.requests.append((path, list(body["input"]), 0 if answer is None else answer[0]))
        return answer

    def _normal(self, path: str, headers: Any, body: dict[str, Any]) -> Answer:
        if path == "/v1/embeddings" and self.api_key and headers.get("Authorization") != f"Bearer {self.api_key}":
            sent = headers.get("Authorization", "")
            return openai_error(401, f"Incorrect API key provided: {sent.removeprefix('Bearer ')}")
        texts = list(body["input"])
        tokens = [self.count_tokens(text) for text in texts]
        refuse = ollama_error if path == "/api/embed" else openai_error
        if self.max_items is not None and len(texts) > self.max_items:
            return refuse(400, f"batch size {len(texts)} > maximum allowed batch size {self.max_items}")
        if self.max_item_tokens is not None and max(tokens) > self.max_item_tokens:
            return refuse(400, "the input length exceeds the context length")
        if self.max_request_tokens is not None and sum(tokens) > self.max_request_tokens:
            return refuse(400, f"max {self.max_request_tokens} tokens per request, got {sum(tokens)}")
        vectors: list[Any] = [self.vector(text) for text in texts]
        if self.rewrite is not None:
            vectors = self.rewrite(texts, vectors)
        if path == "/api/embed":
            return success({"model": body["model"], "embeddings": vectors})
        data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        return success({"object": "list", "model": body["model"], "data": self.order(data)})


def success(content: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


def ollama_error(status: int, message: str) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps({"error": message}).encode()


def openai_error(status: int, message: str) -> Answer:
    content = {"error": {"message": message, "type": "invalid_request_error", "code": None}}
    return status, {"Content-Type": "application/json"}, json.dumps(content).encode()


def always(answer: Answer) -> Fault:
    """The same answer to whatever is asked."""
    return lambda _path, _body: answer


def hang(server: EmbeddingServer) -> Fault:
    """No answer until the server is told to let go, or stops."""

    def wait(_path: str, _body: dict[str, Any]) -> Answer | str:
        server.released.wait(60)
        return None

    return wait


@contextmanager
def running(server: EmbeddingServer) -> Iterator[EmbeddingServer]:
    """Serves on a free port; `server.url` is the address without a path. Every thread has ended afterwards."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = server.answer(self.path, self.headers, body)
            if answer is None:
                self.close_connection = True
                return
            status, headers, content = answer
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                # The client has given up.
                self.close_connection = True

        def log_message(self, *_args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # Connections that a client keeps open must not hold the test up.
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{listener.server_address[1]}"
        try:
            yield server
        finally:
            server.released.set()
            listener.shutdown()
            thread.join()


def sent(server: EmbeddingServer, status: int | None = None) -> list[Sequence[str]]:
    """The inputs of the requests that were answered with `status`, in order."""
    return [texts for _, texts, answered in server.requests if status is None or answered == status]
