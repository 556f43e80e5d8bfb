"""`python -m benchmarks.growth`: time and memory of a build, and memory of the open index, from ten thousand to a million rows.

Rows are made up of the words of real source code, as often as they occur there, so that vocabulary and postings grow as those
of real text do (Zipf's and Heaps' laws), at the lengths of real rows. Each size is written into a store of its own, then in a
fresh process embedded with the static model and built in buckets of the served size, then in another opened and asked. The
result is benchmarks/out/growth.json and a plot, with the slope of each line: 1 is linear.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, worker
from benchmarks.corpus import make_corpus
from benchmarks.growth_plot import Line, write_plot
from benchmarks.indexes import configured, open_shards, written
from benchmarks.material import PROJECT
from benchmarks.soak import extracted
from benchmarks.worker import Worker
from cluster.model.guard import All
from cluster.model.ids import derived_id
from cluster.model.nodes import Node, Store
from cluster.model.query import LexicalQuery, VectorQuery

HERE = Path(__file__).parent
OUT = HERE / "out"
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
FILES = 170
#: Questions to the open index before its memory is read.
ASKED = 200


def rows(count: int, account: str) -> Iterator[Node]:
    """`count` made-up rows; the same for the same count, and the first rows of a longer run."""
    texts = [
        node.text["content"] for node in extracted(make_corpus(OUT / f"corpus-{FILES}", FILES)) if node.text.get("content")
    ]
    frequency = Counter(word for text in texts for word in text.split())
    words, cumulative = list(frequency), list(itertools.accumulate(frequency.values()))
    lengths = [len(text.split()) for text in texts]
    rng = random.Random(5)
    for number in range(count):
        chosen = rng.choices(words, cum_weights=cumulative, k=rng.choice(lengths))
        # New names keep coming in real code, too.
        chosen += [f"name_{number // 7}", f"field{number // 3}"]
        yield Node(
            id=derived_id("growth", str(number)),
            account=account,
            project=PROJECT,
            store=Store.STRUCTURE,
            labels=("Chunk",),
            text={"path": f"src/module{number // 40}.py", "content": " ".join(chosen)},
        )


# --- in processes of their own ------------------------------------------------------------------------------------------------


def build(data_dir: Path) -> dict[str, Any]:
    """Embeds and builds what the store holds; seconds of either, and the most memory that this process had."""
    from jobs.setup import reindexer

    config = configured(data_dir)
    phases: dict[str, tuple[float, float]] = {}

    def note(phase: str, _done: int, _total: int) -> None:
        phases.setdefault(phase, _times())

    with reindexer(config) as indexer:
        started = _times()
        indexer.publish(config.account, PROJECT, note)
        ended = _times()
    found: dict[str, Any] = {"build_peak_mb": _status_mb("VmHWM")}
    for name, since, until in (("embed", started, phases["build"]), ("build", phases["build"], ended)):
        found |= {f"{name}_s": round(until[0] - since[0], 2), f"{name}_cpu_s": round(until[1] - since[1], 2)}
    return found


def _times() -> tuple[float, float]:
    """Seconds of the clock, and of CPU of all threads of this process: what else runs on the machine does not count there."""
    return time.perf_counter(), time.process_time()


def opened(data_dir: Path) -> dict[str, Any]:
    """Opens both shards and asks each; the memory of this process then, as a whole and without pages of files."""
    from cluster.storage import GenerationStore
    from jobs.setup import embedder_for, generations_root

    config = configured(data_dir)
    manifest = GenerationStore(generations_root(config)).current(PROJECT)
    assert manifest is not None
    lexical, vector = open_shards(config)
    pins, guard = {PROJECT: manifest.generation}, All(())
    texts = [" ".join(node.text["content"].split()[:5]) for node in rows(ASKED, config.account)]
    vectors = embedder_for(config, "static", threads=1, timeout_s=30.0).embed_query(texts)
    lexical.search([LexicalQuery(text=text, guard=guard, pins=pins, k=100) for text in texts])
    answers = vector.search(
        [VectorQuery(vector=row, identity=manifest.identity, guard=guard, pins=pins, k=100) for row in vectors]
    )
    assert all(len(answer.ids) == 100 for answer in answers)
    return {"buckets": len(manifest.buckets), "open_mb": _status_mb("VmRSS"), "open_anonymous_mb": _status_mb("RssAnon")}


def _status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return round(int(line.split()[1]) / 1000, 1)
    raise ValueError(name)


def _serve(data_dir: Path) -> None:
    worker.serve({"pid": os.getpid()}, {"build": lambda: build(data_dir), "opened": lambda: opened(data_dir)})


# --- the run ------------------------------------------------------------------------------------------------------------------


def measure(count: int, folder: Path) -> dict[str, Any]:
    """All figures of one size; the folder is removed in the end."""
    data_dir = folder / str(count)
    shutil.rmtree(data_dir, ignore_errors=True)
    config = configured(data_dir)
    try:
        written(config, rows(count, config.account))
        found: dict[str, Any] = {"rows": count}
        for what in ("build", "opened"):
            child = Worker("benchmarks.growth", "--serve", str(data_dir), log=OUT / "growth.log")
            found |= child.ask(what)
            child.stop()
        found["index_mb"] = round(sum(path.stat().st_size for path in (data_dir / "generations").rglob("*.*")) / 1e6, 1)
        return found
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


def lines(found: Sequence[dict[str, Any]]) -> list[Line]:
    """What is plotted."""
    named = {
        "build_cpu_s": "build, CPU s",
        "embed_cpu_s": "embedding (static), CPU s",
        "build_peak_mb": "peak memory of the build, MB",
        "open_mb": "memory of the open index, MB",
    }
    return [Line(label, [(point["rows"], point[key]) for point in found]) for key, label in named.items()]


def main() -> int:
    """Measures every size, smallest first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="rows")
    parser.add_argument("--plot", type=Path, default=HERE / "growth.svg", help="where the plot goes")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve)
        return 0
    OUT.mkdir(exist_ok=True)
    found = []
    for count in sorted(options.sizes):
        found.append(measure(count, OUT / "growth"))
        sys.stderr.write(f"growth: {json.dumps(found[-1])}\n")
    described = machine.describe()
    result = {"machine": described, "sizes": found, "slopes": {line.label: line.slope for line in lines(found)}}
    (OUT / "growth.json").write_text(json.dumps(result, indent=1) + "\n")
    caption = f"{described['cpu']}, {described['cores']} cores; buckets of 50,000 rows, 256 dimensions, float32"
    write_plot(options.plot, lines(found), caption)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
