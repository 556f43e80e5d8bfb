from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import ConflictError, UsageError
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


def test_the_record_of_a_dead_server_keeps_nobody_out(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    machine.write_state(tmp_path, state(process.pid))
    assert machine.read_state(tmp_path) == state(process.pid)
    machine.refuse_second_server(tmp_path)


def test_the_record_of_another_program_with_that_process_id_keeps_nobody_out(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        machine.write_state(tmp_path, state(process.pid))
        machine.refuse_second_server(tmp_path)
        process.kill()


def test_a_live_server_keeps_a_second_one_out(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "input()", "raycall", "serve"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        machine.write_state(tmp_path, state(process.pid))
        with pytest.raises(ConflictError, match=str(process.pid)):
            machine.refuse_second_server(tmp_path)
        process.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_record_that_cannot_be_read_is_no_record(tmp_path: Path, text: str) -> None:
    machine.state_path(tmp_path).write_text(text)
    assert machine.read_state(tmp_path) is None


def test_leftovers_are_ended_and_nobody_else(tmp_path: Path) -> None:
    mine = tmp_path / "run-1"
    # One that ignores the polite signal, marked by its environment; one marked by its arguments; one of another folder.
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    processes = [
        subprocess.Popen([sys.executable, "-c", stubborn], env={**os.environ, "MARK": str(mine)}, stdout=subprocess.PIPE),
        subprocess.Popen([sys.executable, "-c", stubborn, str(mine / "x.cfg")], stdout=subprocess.PIPE),
        subprocess.Popen([sys.executable, "-c", stubborn, str(tmp_path / "run-2")], stdout=subprocess.PIPE),
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        machine.end_leftovers(mine, grace_s=0.1)
        assert [process.wait(10) for process in processes[:2]] == [-9, -9]
        assert processes[2].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_the_run_folder_is_short_and_the_data_folders_own(tmp_path: Path) -> None:
    one, two = machine.run_dir_of(tmp_path / "a" / ("x" * 200)), machine.run_dir_of(tmp_path / "b")
    assert one != two
    assert len(str(one)) < 60
    assert machine.run_dir_of(tmp_path / "b" / ".." / "b") == two
