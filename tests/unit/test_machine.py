from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import ConflictError, UnavailableError, UsageError
from serve import machine
from serve.machine import Ports, ServerState


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ports]:
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    held = Ports()
    yield held
    held.close()


def listening(reuse: bool) -> socket.socket:
    taken = socket.socket()
    if reuse:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


@pytest.mark.parametrize("reuse", [False, True])
def test_a_taken_port_is_passed_over_even_if_its_holder_would_share_it(ports: Ports, reuse: bool) -> None:
    with listening(reuse) as taken:
        wished = taken.getsockname()[1]
        found = ports.public("127.0.0.1", wished)
    assert found != wished


def test_two_servers_that_start_at_once_never_get_the_same_ports(ports: Ports) -> None:
    other = Ports()
    with listening(False) as free:
        wished = free.getsockname()[1]
    try:
        first, second = ports.public("127.0.0.1", wished), other.public("127.0.0.1", wished)
        assert first == wished
        assert second != wished
        assert not set(ports.inner()) & set(other.inner())
    finally:
        other.close()


def test_ports_that_were_let_go_can_be_had_again(ports: Ports) -> None:
    inner = ports.inner()
    ports.close()
    assert ports.inner() == inner


def test_inner_ports_avoid_what_somebody_listens_on(ports: Ports) -> None:
    first = ports.inner()
    ports.close()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", first[7]))
        taken.listen()
        assert ports.inner() != first


@pytest.mark.parametrize("host", ["0.0.", "192.0.2.77", "no such host"])
def test_an_address_that_is_not_ours_is_named(ports: Ports, host: str) -> None:
    with pytest.raises(UsageError, match=host.replace(".", r"\.")) as caught:
        ports.public(host, 8123)
    assert caught.value.field == "http.host"


def state(pid: int) -> ServerState:
    return ServerState(pid=pid, host="127.0.0.1", port=1, url="http://127.0.0.1:1", started_at=1, run_dir="/nowhere")


def test_one_server_a_data_folder_from_its_very_start(tmp_path: Path) -> None:
    with machine.sole_server(tmp_path):
        with pytest.raises(ConflictError, match="starting"), machine.sole_server(tmp_path):
            pass
        machine.write_state(tmp_path, state(77))
        with pytest.raises(ConflictError, match="process 77"), machine.sole_server(tmp_path):
            pass
        assert machine.read_state(tmp_path) == state(77)
    assert machine.read_state(tmp_path) is None


def test_the_record_of_a_killed_server_keeps_nobody_out(tmp_path: Path) -> None:
    machine.write_state(tmp_path, state(os.getpid()))
    with machine.sole_server(tmp_path):
        assert machine.read_state(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_record_that_cannot_be_read_is_no_record(tmp_path: Path, text: str) -> None:
    machine.state_path(tmp_path).write_text(text)
    assert machine.read_state(tmp_path) is None


def test_leftovers_are_ended_and_nobody_else(tmp_path: Path) -> None:
    mine, other = tmp_path / "run-1", tmp_path / "run-12"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    program = [sys.executable, "-c", stubborn]
    processes = [
        subprocess.Popen(program, env={**os.environ, **machine.marked(mine)}, stdout=subprocess.PIPE),
        # A folder whose name begins alike, and somebody who merely reads a file of ours.
        subprocess.Popen(program, env={**os.environ, **machine.marked(other)}, stdout=subprocess.PIPE),
        subprocess.Popen([*program, str(mine / "ray" / "x.log")], stdout=subprocess.PIPE),
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        machine.end_leftovers(mine, grace_s=0.1)
        assert processes[0].wait(10) == -9
        assert [process.poll() for process in processes[1:]] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_one_that_wrote_its_title_over_the_mark_is_known_by_where_it_writes(tmp_path: Path) -> None:
    mine = tmp_path / "run-1"
    mine.mkdir()
    program = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    with (mine / "agent.out").open("wb") as output, subprocess.Popen(program, stdout=output, env={}) as process:
        (mine / "agent.out").unlink()
        assert machine.end_leftovers(tmp_path / "run-12") == []
        assert machine.end_leftovers(mine) == [process.pid]
        assert process.wait(10) == -15


def test_what_a_helper_starts_while_it_ends_is_ended_too(tmp_path: Path) -> None:
    mark = machine.marked(tmp_path / "run")
    child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    parent = (
        "import signal, subprocess, sys\n"
        f"def on(*_): subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, on); print('up', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], env={**os.environ, **mark}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ended = machine.end_leftovers(tmp_path / "run", grace_s=1.0)
    assert process.pid in ended
    assert machine._marked_processes(tmp_path / "run") == []


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="somebody else"):
        machine._own_folder(tmp_path / "run")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnavailableError):
        machine._own_folder(tmp_path / "open")


def test_the_run_folder_is_short_and_the_data_folders_own(tmp_path: Path) -> None:
    one, two = machine.run_dir_of(tmp_path / "a" / ("x" * 200)), machine.run_dir_of(tmp_path / "b")
    assert one != two
    assert len(str(one)) < 60
    assert machine.run_dir_of(tmp_path / "b" / ".." / "b") == two
