"""`python -m benchmarks.run`: measures, prints one JSON object, and writes it to benchmarks/out/bench.json too.

See README.md in this folder for what each key means. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load, machine, server, swapping
from benchmarks.corpus import make_corpus, questions, stored_texts
from benchmarks.rounds import Comparison, Measure, compare
from benchmarks.server import Indexed, Searches
from benchmarks.worker import Worker

OUT = Path(__file__).parent / "out"
#: Files of the two corpora: about 20,000 rows, and about 5,000 where each row costs the sentence model 30 ms.
FILES, SENTENCE_FILES = 740, 170
QUESTIONS = 16_384
#: Length of a round of open-loop load.
LOAD_SECONDS = 12.0
NAIVE = {"RAYCALL_INGRESS_HA_PROXY": "false", "RAYCALL_INGRESS_MICRO_BATCHING": "false"}
SENTENCE = {"RAYCALL_EMBED_FIRST": "sentence"}


@dataclass(slots=True)
class Bench:
    """One run: what to measure with, and what was found so far."""

    rounds: int
    seconds: float
    results: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """One line of progress."""
        sys.stderr.write(f"bench: [{time.monotonic() - self.started:5.1f} s] {text}\n")
        sys.stderr.flush()

    def keep(self, key: str, comparison: Comparison, **notes: Any) -> None:
        """Takes a comparison into the results."""
        self.results[key] = comparison.ratio
        self.details[key] = {**comparison.details(), **notes}
        self.say(f"{key} = {comparison.ratio}")

    def keep_cost(self, key: str, comparison: Comparison, **notes: Any) -> None:
        """As `keep`, where the result is what ours costs in units of the base."""
        self.results[key] = comparison.cost
        self.details[key] = {"cost": comparison.cost, **comparison.details(), **notes}
        self.say(f"{key} = {comparison.cost}")


def measure_index(bench: Bench) -> Indexed:
    """Indexes the corpus anew."""
    corpus = make_corpus(OUT / f"corpus-{FILES}", FILES)
    data_dir = OUT / "static"
    shutil.rmtree(data_dir, ignore_errors=True)
    bench.say(f"indexing {FILES} files")
    indexed = server.index(corpus, data_dir)
    bench.results["index_files_per_s"] = round(FILES / indexed.seconds, 2)
    bench.details["index"] = {"seconds": round(indexed.seconds, 2), **indexed.report}
    bench.say(f"{indexed.report['rows']} rows in {indexed.seconds:.1f} s")
    return indexed


def measure_http(bench: Bench, indexed: Indexed) -> None:
    """The normal server against its own route that does nothing, then against the naive one."""
    asked = questions(stored_texts(indexed.data_dir), QUESTIONS)
    copy = server.copied(indexed, OUT / "naive")
    bench.say("starting the server")
    with server.running(indexed) as normal:
        searches = Searches(normal, indexed.key, asked, bench.seconds)
        bench.keep("http_search_vs_noop", compare(searches.search, searches.noop, bench.rounds))
        bare = Searches(normal, indexed.key, asked[::-1], bench.seconds, expand_hops=0)
        comparison = compare(bare.search, bare.noop, bench.rounds)
        bench.details["http_search_without_expansion_vs_noop"] = comparison.details()
        state = json.loads((indexed.data_dir / "server.json").read_bytes())
        total, programs = machine.resident_mb(normal.process.pid, state["run_dir"])
        bench.results["rss_mb"] = total
        bench.details["rss_mb"] = programs
        bench.say(f"rss_mb = {total}; starting the naive server")
        with server.running(copy, **NAIVE) as plain:
            other = Searches(plain, copy.key, asked, bench.seconds)
            bench.keep("batched_vs_naive", compare(searches.search, other.search, bench.rounds))
        bench.details["failed_requests"] = searches.failed + bare.failed + other.failed


def measure_load(bench: Bench) -> None:
    """The tail at half of the saturation rate while nodes are written and a generation is swapped; and how soon writes show."""
    corpus = OUT / f"corpus-{SENTENCE_FILES}-twice"
    shutil.rmtree(corpus, ignore_errors=True)
    shutil.copytree(make_corpus(OUT / f"corpus-{SENTENCE_FILES}", SENTENCE_FILES), corpus)
    data_dir = OUT / "swapped"
    shutil.rmtree(data_dir, ignore_errors=True)
    bench.say("indexing two generations to swap")
    indexed = server.index(corpus, data_dir)
    swapping.add_generation(indexed, corpus)
    asked = questions(stored_texts(data_dir), QUESTIONS)
    with server.running(indexed) as swapped:
        searches = Searches(swapped, indexed.key, asked, bench.seconds)
        searches.search()
        saturation = searches.search().per_second
        found = [
            swapping.evenness(
                swapped, indexed, load.cycle(asked[::-1]), saturation / 2, LOAD_SECONDS, beside=lambda: swapping.swap(data_dir)
            )
            for _ in range(bench.rounds)
        ]
        bench.results["load_p99_vs_p50"] = median(run.ratio for run in found)
        bench.details["load_p99_vs_p50"] = {"saturation": round(saturation, 1), "rounds": [asdict(run) for run in found]}
        bench.details["failed_requests"] += searches.failed + sum(run.failed for run in found)
        bench.say(f"load_p99_vs_p50 = {bench.results['load_p99_vs_p50']}, {sum(run.failed for run in found)} failed")
        visible = swapping.visible_after_ack_ms(swapped, indexed)
        bench.results["visible_after_ack_ms"] = visible["ms"]
        bench.details["visible_after_ack_ms"] = visible
        bench.say(f"visible_after_ack_ms = {visible['ms']}")


def measure_sentence(bench: Bench) -> None:
    """The same with the sentence model, over a smaller corpus whose index is kept between runs."""
    corpus = make_corpus(OUT / f"corpus-{SENTENCE_FILES}", SENTENCE_FILES)
    data_dir = OUT / f"sentence-{_key(corpus)}"
    kept = data_dir.is_dir()
    bench.say(f"indexing {SENTENCE_FILES} files with the sentence model{'' if kept else ': minutes, the first time'}")
    indexed = server.index(corpus, data_dir, **SENTENCE)
    asked = questions(stored_texts(data_dir), QUESTIONS // 2)
    with server.running(indexed, **SENTENCE) as sentence:
        searches = Searches(sentence, indexed.key, asked, bench.seconds)
        comparison = compare(searches.search, searches.noop, bench.rounds)
        bench.keep("http_sentence_vs_noop", comparison, rows=indexed.report["rows"], identity=indexed.report["identity"])
        bench.details["failed_requests"] += searches.failed


def _key(corpus: Path) -> str:
    """The corpus's content as a word: another one gets another folder."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(corpus.rglob("*.py")):
        digest.update(path.relative_to(corpus).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def measure_legs(bench: Bench, indexed: Indexed) -> None:
    """Router and actors against the libraries alone."""
    bench.say("starting the legs and the raw libraries")
    folder, log = str(indexed.data_dir), OUT / "workers.log"
    raw = Worker("benchmarks.raw", folder, log=log)
    try:
        legs = Worker("benchmarks.legs", folder, log=log)
        try:
            for what, key in (("lexical", "lexical_vs_lucene"), ("vector", "vector_vs_faiss")):
                comparison = compare(
                    lambda what=what: legs.rate(what, seconds=bench.seconds),  # type: ignore[misc]
                    lambda what=what: raw.rate(what, seconds=bench.seconds),  # type: ignore[misc]
                    bench.rounds,
                )
                bench.keep(key, comparison)
        finally:
            legs.stop()
    finally:
        raw.stop()


def measure_build(bench: Bench, indexed: Indexed) -> None:
    """Building one bucket's lexical index against bare IndexWriters: one whole build a round."""
    bench.say("building the lexical index, and the same with Lucene alone")
    builds = Worker("benchmarks.builds", str(indexed.data_dir), log=OUT / "workers.log")
    try:
        for key, base in (("build_vs_lucene", "lucene"), ("build_vs_plain_lucene", "plain")):
            comparison = compare(lambda: builds.rate("ours"), lambda base=base: builds.rate(base), bench.rounds)  # type: ignore[misc]
            bench.keep(key, comparison, **builds.hello)
    finally:
        builds.stop()


def measure_plain(bench: Bench, indexed: Indexed) -> None:
    """What guards and buckets cost the plain shards, in CPU time."""
    bench.say("building one bucket and four of tagged rows")
    plain = Worker("benchmarks.plain", str(indexed.data_dir), log=OUT / "workers.log")

    def rate(what: str, **arguments: Any) -> Measure:
        return lambda: plain.rate(what, seconds=bench.seconds, **arguments)

    try:
        bench.keep_cost("guard_vs_plain", compare(rate("visible"), rate("all"), bench.rounds), **plain.hello)
        bench.details["guard_vs_plain"]["cold"] = compare(rate("cold"), rate("all"), bench.rounds).cost
        for leg in ("lexical", "vector"):
            comparison = compare(rate(leg, buckets=4), rate(leg, buckets=1), bench.rounds)
            bench.keep_cost(f"four_shards_cpu_{leg}", comparison, **plain.hello)
    finally:
        plain.stop()


def main() -> int:
    """Runs everything; 1 when a request failed, since a ratio of failures means nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (at least 3 for a median)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    options = parser.parse_args()
    # What was started must be stopped, however this ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    OUT.mkdir(exist_ok=True)
    (OUT / "workers.log").unlink(missing_ok=True)
    bench = Bench(options.rounds, options.seconds)
    described = machine.describe()
    indexed = measure_index(bench)
    measure_http(bench, indexed)
    measure_load(bench)
    measure_sentence(bench)
    measure_legs(bench, indexed)
    measure_build(bench, indexed)
    measure_plain(bench, indexed)
    bench.details["seconds"] = round(time.monotonic() - bench.started, 1)
    found = {**bench.results, "machine": described, "details": bench.details}
    text = json.dumps(found, indent=1)
    (OUT / "bench.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 1 if bench.details["failed_requests"] else 0


if __name__ == "__main__":
    sys.exit(main())
