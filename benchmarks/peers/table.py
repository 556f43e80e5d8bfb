"""The results as JSON and as a Markdown page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NOTES = """
How to read it:

- One corpus, one set of float32 vectors (the product's static model), the same questions. Peers are given the vectors, of rows
  and of questions; Raycall's server embeds each question itself, and its in-process rows are given the vectors too.
- Ten hits a question. Peers return ids and texts. Raycall's answer also carries passages, scores, the access check against the
  store, a disclosure and related nodes ("hits alone": without the last); its in-process rows return ids.
- A library inside the client's process and a server are not the same thing: compare "in process" with "in process". Raycall's
  legs are measured both ways for that. Its questions in process come in groups of {clients}, as its router forms them under
  this load; libraries are asked by {clients} threads.
- Filtered: only rows of one of ten projects, by each system's own filter: `where` (LanceDB with a bitmap index, Chroma), a
  payload condition (Qdrant), a required term (Tantivy), `weight_mask` (bm25s), `projects` (Raycall, whose projects are
  partitions).
- recall@10: share of hits whose exact cosine reaches that of the tenth best row. nDCG@10: relevant is every row that holds the
  five words of the question in their order, so it favours words over meaning. Both over {judged}
  questions, or as many as were answered in a minute.
- Build: from rows and vectors at hand to an index on disk; for Chroma to the last acknowledged write. Raycall's `index` as a
  user runs it, with reading, parsing and embedding, took {raycall_index_s} s for all ten projects.
- Memory: proportional set size of all of a system's processes after the load, and in brackets before anything was opened.
- Settings are those that each documentation advises: see the modules in this folder. LanceDB's guide advises no vector index up
  to about 100,000 rows, and IVF-PQ for filtered questions; both are here. Qdrant's local mode is meant for tests and small
  data, by its own word; its server is not on the package indexes.
"""


def write_results(path: Path, found: Mapping[str, Any]) -> None:
    """Writes the page to `path`, and the same as JSON beside it."""
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    path.write_text("\n".join(_page(found)) + "\n")


def _page(found: Mapping[str, Any]) -> Iterator[str]:
    machine, corpus = found["machine"], found["corpus"]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found["date"]))
    yield "# Raycall beside other systems\n\nWritten by `make bench-peers`; do not edit.\n"
    yield f"- Run: {date}; load before it {machine['load_before']}"
    yield f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_mb']} MB, {machine['system']}"
    yield f"- Corpus: {corpus['rows']} rows of {corpus['files']} Python files, {corpus['dimensions']} dimensions"
    yield f"- Load: {corpus['clients']} clients in a closed loop, {corpus['seconds']:g} s a line"
    versions = {**machine["versions"], **machine["peer_versions"]}
    yield "- Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + "\n"
    yield "| System | Leg | queries/s | p50 ms | p99 ms | recall@10 | nDCG@10 |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for name, system in found["systems"].items():
        for leg, values in system["rounds"].items():
            yield _line(f"{name} ({system['kind']})", leg, values)
    yield "\n| System | build s | of that CPU s | memory MB (before opening) |"
    yield "| --- | ---: | ---: | ---: |"
    for name, system in found["systems"].items():
        built = system["build"]
        memory = f"{system['rss_mb']:.0f} ({system['rss_empty_mb']:.0f})"
        yield f"| {name} | {built['seconds']:.1f} | {built.get('cpu_s', '')} | {memory} |"
    yield _NOTES.format(**corpus).rstrip()
    wrong = [name for name, system in found["systems"].items() if any(v["excluded_rows"] for v in system["rounds"].values())]
    if wrong:
        yield f"\nReturned rows that the filter excludes: {', '.join(wrong)}."


def _line(name: str, leg: str, values: Mapping[str, Any]) -> str:
    quality = (f"{values[key]:.3f}" if key in values else "" for key in ("recall@10", "ndcg@10"))
    failed = f" ({values['failed']} failed)" if values.get("failed") else ""
    cells = (name, leg, f"{values['per_second']:.0f}{failed}", f"{values['p50_ms']:.1f}", f"{values['p99_ms']:.1f}", *quality)
    return f"| {' | '.join(cells)} |"
