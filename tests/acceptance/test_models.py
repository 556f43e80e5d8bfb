"""The static model first, then the sentence model: in the background, without a gap, and kept over a restart."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from cluster.embed import sentence, static
from tests.support.repository import FILES, make_repository
from tests.support.server import RAYCALL, Server, clean_env

#: Enough texts that the static model's generation is seen before the sentence model is through.
NOTES = {f"notes/{number:02d}.md": f"# Note {number}\n\nPump {number} was serviced on day {number}.\n" for number in range(40)}


def asked(server: Server) -> Any:
    """An answer; there must be one at any time."""
    return server.search("sensor calibration")


def identity(answer: Any) -> str | None:
    leg = answer["disclosure"]["legs"][1]
    return str(leg["identity"]) if leg["ran"] else None


def refinement(server: Server) -> Any:
    (project,) = server.request("GET", "/v1/status").json["projects"]
    return project["refinement"]


def test_the_sentence_model_takes_over_without_a_gap_and_stays(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "pump-controller", {**FILES, **NOTES})
    data_dir = tmp_path / "data"
    server = Server(data_dir, RAYCALL_EMBED_THEN="sentence")
    served: list[str | None] = []
    phases: list[str] = []

    def taken_over() -> Any:
        answer = asked(server)
        if answer["hits"] or served:
            assert answer["hits"], answer["disclosure"]
            assert not [note for note in answer["disclosure"]["degradations"] if note["code"] != "not_indexed_yet"]
            served.append(identity(answer))
            shown = refinement(server)
            phases.extend([shown["phase"]] if shown else [])
        return bool(served) and served[-1] == sentence.IDENTITY.key and phases[-1:] == ["done"]

    try:
        command = [RAYCALL, "index", str(source)]
        env = clean_env(data_dir, RAYCALL_EMBED_THEN="sentence")
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as indexing:
            server.until("the sentence model", taken_over, timeout=240)
        assert indexing.returncode == 0
        # One after the other, and never back.
        assert list(dict.fromkeys(served)) == [static.IDENTITY.key, sentence.IDENTITY.key]
        assert served == sorted(served, key=[static.IDENTITY.key, sentence.IDENTITY.key].index)
        # The phases come in this order; an early one may be over before it is looked at.
        order = ["embed", "build", "done"]
        assert phases == sorted(phases, key=order.index)
        (project,) = server.request("GET", "/v1/status").json["projects"]
        assert (project["refinement"]["done"], project["refinement"]["detail"]) == (project["rows"], sentence.IDENTITY.key)
        assert (project["identity"], project["rows"]) == (sentence.IDENTITY.key, project["vectors"])
        generation = asked(server)["disclosure"]["generations"]
        assert generation == {"pump-controller": project["generation"]}
    finally:
        server.stop()
    again = Server(data_dir, RAYCALL_EMBED_THEN="sentence")
    try:
        answer = again.until("an answer of both legs", lambda: (a := asked(again)) and identity(a) and a, timeout=60)
        assert identity(answer) == sentence.IDENTITY.key
        assert answer["disclosure"]["generations"] == generation
        assert answer["hits"][0]["path"] in {"README.md", "calibration.yaml"}
    finally:
        again.stop()
