"""Three processes without JAX watch each other, and real signals hit them."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from jaxpipe.training.stopping.watch import _introduction, listen

SILENCE = 1.0

WATCH = f"""
import sys
from jaxpipe.training.stopping.watch import Address, fail, listen, say_done, watch_all, watch_first

number = int(sys.argv[1])
if number == 0:
    listener = listen(["localhost"])
    print(listener.address.port, listener.address.token, flush=True)
    watch = watch_all(listener, 3, silence={SILENCE})
else:
    address = Address(("localhost",), int(sys.argv[2]), sys.argv[3])
    watch = watch_first(address, number, silence={SILENCE})
print("watches", flush=True)
for word in map(str.strip, sys.stdin):
    if word.isdigit():
        fail(watch, int(word))
    say_done(watch)
    print(word, flush=True)
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Three that watch each other; those still alive at the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WATCH, *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes))
        return started[-1]

    try:
        address = start(0).stdout.readline().split()
        for number in (1, 2):
            start(number, *address)
        for process in started:
            assert process.stdout.readline() == "watches\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ends_of(processes: list[subprocess.Popen[str]], without: int) -> list[tuple[int, str]]:
    """Code and stderr of all but one."""
    rest = [process for number, process in enumerate(processes) if number != without]
    return [(process.wait(timeout=20), process.communicate()[1]) for process in rest]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_killed_process_ends_the_others_at_once(processes, number):
    processes[number].kill()
    began = time.monotonic()
    for code, said in ends_of(processes, number):
        assert code == 1
        assert f"process {number} has ended; process " in said
        assert said.count("\n") == 1
    assert time.monotonic() - began < 5 * SILENCE  # process 0 waits for the farewell of the others


@pytest.mark.parametrize("number", [0, 1])
def test_a_frozen_process_ends_the_others_when_it_has_been_silent_too_long(processes, number):
    processes[number].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    for code, said in ends_of(processes, number):
        assert code == 1
        assert f"process {number} has been silent for 1 seconds" in said
    assert SILENCE / 2 < time.monotonic() - began < 5 * SILENCE


@pytest.mark.parametrize("number", [0, 2])
def test_a_process_that_fails_ends_the_others_with_its_code(processes, number):
    processes[number].communicate("7\n", timeout=20)
    assert processes[number].returncode == 7
    for code, said in ends_of(processes, number):
        assert code == 7
        assert f"process {number} has failed and says why" in said


def test_after_a_good_end_nobody_minds_who_leaves_first(processes):
    for process in processes:
        process.stdin.write("done\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
    for process in processes:
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0


def test_longer_silence_than_the_limit_is_no_silence_while_pings_come(processes):
    time.sleep(2 * SILENCE)
    assert [process.poll() for process in processes] == [None] * 3


def test_a_stranger_is_not_let_in():
    with listen(["localhost"]).door as door:
        for line, number in ((b"0123 1\n", None), (b"\n", None), (b"secret one\n", None), (b"secret 1\n", 1)):
            with socket.create_connection(("localhost", door.getsockname()[1])) as stranger:
                stranger.sendall(line)
                with door.accept()[0] as connection:
                    assert _introduction(connection, "secret") == number
