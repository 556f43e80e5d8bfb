import io
import json
import logging
from collections.abc import Iterator

import pytest

from cluster import telemetry


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, {name: logging.getLogger(name).level for name in telemetry.PACKAGES})
    yield
    for handler in [handler for handler in root.handlers if getattr(handler, "raycall", False)]:
        root.removeHandler(handler)
    root.setLevel(before[0])
    for name, level in before[1].items():
        logging.getLogger(name).setLevel(level)


def logged(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure(level, form, stream)
    return stream


def test_a_record_is_one_line_whatever_it_quotes() -> None:
    stream = logged("text")
    extra = {"action": "file_skipped", "path": 'a b"\n\x1b[31m', "count": 3}
    logging.getLogger("jobs.walk").warning("file %s is left out", "x\ny", extra=extra)
    (line,) = stream.getvalue().splitlines()
    assert line.endswith('warning jobs.walk: file x\\x0ay is left out action=file_skipped count=3 path="a b\\"\\n\\u001b[31m"')
    assert "\x1b" not in line


def test_json_records_carry_their_fields() -> None:
    stream = logged("json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("serve.app").exception("it failed", extra={"action": "failed", "ids": ("a", "b")})
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["action"], entry["ids"]) == ("error", "it failed", "failed", ["a", "b"])
    assert "ValueError" in entry["error"]
    assert entry["time"].endswith("Z")


def test_levels_are_ours_and_others_speak_from_warning_up() -> None:
    stream = logged("text", "debug")
    logging.getLogger("cluster.x").debug("ours")
    logging.getLogger("somebody.else").info("theirs")
    assert "ours" in stream.getvalue() and "theirs" not in stream.getvalue()
    quiet = logged("text", "error")
    logging.getLogger("cluster.x").warning("too quiet")
    assert quiet.getvalue() == "" and "too quiet" not in stream.getvalue()


def test_records_go_to_whatever_stderr_is_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry.configure("info", "text")
    for _ in range(2):
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        logging.getLogger("serve.x").info("here")
        assert stream.getvalue().count("here") == 1
