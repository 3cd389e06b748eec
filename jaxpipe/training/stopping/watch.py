"""The processes of a run watch each other: when one ends, all end, whatever they are waiting for.

JAX alone leaves gaps. After a kill -9 a collective may wait for ever instead of failing, until JAX's
heartbeats end the process by SIGABRT with a page of C++; and a process that refuses to go on tells nobody
(all seen on CPUs; NCCL too waits for the dead). So each has a thread that watches, over our own connections:

    process 1 ---+
    process 2 ---+--- process 0        four pings each way in the time that counts as silence
    process 3 ---+

    the connection breaks     that process was killed: all others end at once, with code 1
    nothing but silence       it is frozen, or its host is gone: all others end, with code 1
    "failed, code 2"          it says itself that it ends: all others end at once, with that code
    "done"                    it has nothing left to do, and may vanish

The thread ends its process by ``os._exit`` after one sentence on stderr, for nothing else ends a collective
that waits for the dead. What is to be kept is flushed as it is written. Process 0 goes last: where JAX misses
it, JAX ends the others in its own way.
"""

import hmac
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from jaxpipe.training.stopping.leaving import say_and_exit

LOST = 1
"""The code with which a process ends because another one has vanished."""

_PINGS_IN_SILENCE = 4
_INTRODUCTION_SECONDS = 5
_FAREWELL_SECONDS = 0.1
_LAST_FAREWELL_SECONDS = 1.0


class Address(NamedTuple):
    """Where process 0 listens: ``hosts`` are names of one host; ``token`` keeps strangers out."""

    hosts: tuple[str, ...]
    port: int
    token: str


class Listener(NamedTuple):
    """The open door of process 0."""

    door: socket.socket
    address: Address


@dataclass
class Watch:
    """The connections of one process: of process 0 to all others, of any other to process 0.

    silence: seconds after which a process that sends nothing counts as lost.
    where: what this process is doing, in words, for the sentence with which it follows another; or nothing.
    """

    process_id: int
    silence: float
    peers: Mapping[int, "_Peer"]
    sending: threading.Lock = field(default_factory=threading.Lock)
    is_failing: bool = False
    where: Callable[[], str] = str


@dataclass
class _Peer:
    number: int
    connection: socket.socket
    heard_at: float = field(default_factory=time.monotonic)
    is_gone: bool = False
    unread: bytes = b""


def listen(hosts: Sequence[str]) -> Listener:
    """Open the door of process 0, which is reached by at least one of ``hosts``."""
    door = open_port(0)
    return Listener(door, Address(tuple(hosts), door.getsockname()[1], secrets.token_hex(8)))


def open_port(port: int) -> socket.socket:
    """Listen at a port (0: any that is free) of all this host's addresses; OSError if it is taken."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)


def watch_all(listener: Listener, num_processes: int, *, silence: float) -> Watch:
    """Process 0: let all others in, then watch them. Waits for as long as one is missing."""
    peers: dict[int, _Peer] = {}
    with listener.door as door:
        while len(peers) < num_processes - 1:
            connection, _ = door.accept()
            number = _introduction(connection, listener.address.token)
            if number is None:
                connection.close()
            else:
                peers[number] = _Peer(number, connection)
    return _start(Watch(0, silence, peers))


def watch_first(address: Address, process_id: int, *, silence: float) -> Watch:
    """Any other process: watch process 0, which tells what happens to the rest.

    Raises:
        OSError: it cannot be reached at any of its hosts.
    """
    failures = []
    for host in address.hosts:
        try:
            connection = socket.create_connection((host, address.port), timeout=silence)
        except OSError as error:
            failures.append(f"{host}: {error.strerror or error}")
            continue
        connection.sendall(f"{address.token} {process_id}\n".encode())
        return _start(Watch(process_id, silence, {0: _Peer(0, connection)}))
    raise OSError("; ".join(failures))


def say_done(watch: Watch) -> None:
    """This process may vanish from now on; it still sees whether the others do."""
    _tell(watch, "done")


def fail(watch: Watch, code: int) -> NoReturn:
    """End this process with ``code``, and all others with it."""
    watch.is_failing = True
    _tell(watch, f"failed {watch.process_id} {code}")
    deadline = time.monotonic() + (_FAREWELL_SECONDS if watch.process_id else _LAST_FAREWELL_SECONDS)
    while time.monotonic() < deadline and not all(peer.is_gone for peer in watch.peers.values()):
        time.sleep(0.01)  # at once, closing with pings unread could take the line back
    os._exit(code)


def _introduction(connection: socket.socket, token: str) -> int | None:
    """The number of the process that connects, or None if it is a stranger."""
    connection.settimeout(_INTRODUCTION_SECONDS)
    line = b""
    with suppress(OSError, ValueError):
        while not line.endswith(b"\n") and len(line) < 2 * len(token):
            line += connection.recv(1) or b"\n"
        given, _, number = line.decode().strip().partition(" ")
        if hmac.compare_digest(given, token):
            return int(number)
    return None


def _start(watch: Watch) -> Watch:
    for peer in watch.peers.values():
        peer.connection.settimeout(watch.silence)
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_run, args=(watch,), name="watch", daemon=True).start()
    return watch


def _run(watch: Watch) -> None:
    """Until all others are gone in good order, or this process ends."""
    pause = watch.silence / _PINGS_IN_SILENCE
    pinged_at = 0.0
    selector = selectors.DefaultSelector()
    for peer in watch.peers.values():
        selector.register(peer.connection, selectors.EVENT_READ, peer)
    while selector.get_map():
        for key, _ in selector.select(pause):
            if not _hear(watch, key.data):
                key.data.is_gone = True
                selector.unregister(key.fileobj)
        now = time.monotonic()
        if now - pinged_at >= pause:
            _tell(watch, "ping")
            pinged_at = now
        for peer in [key.data for key in selector.get_map().values()]:
            if now - peer.heard_at > watch.silence:
                _lose(watch, peer, f"has been silent for {watch.silence:.0f} seconds")


def _hear(watch: Watch, peer: _Peer) -> bool:
    """Read what a peer has sent, and do what each whole line says; False if it is gone in good order."""
    try:
        received = peer.connection.recv(4096)
    except OSError:
        received = b""
    if not received:
        _lose(watch, peer, "has ended")
        return False
    peer.heard_at = time.monotonic()
    *lines, peer.unread = (peer.unread + received).split(b"\n")
    for line in map(bytes.decode, lines):
        word, *rest = line.split(" ", 2)
        if word == "done":
            return False
        if word == "failed":
            number, code = rest
            _end(watch, peer, line, f"process {number} has failed and says why", int(code))
        elif word == "lost":
            number, what = rest
            _end(watch, peer, line, f"process {number} {what}", LOST)
    return True


def _lose(watch: Watch, peer: _Peer, what: str) -> None:
    _end(watch, peer, f"lost {peer.number} {what}", f"process {peer.number} {what}", LOST)


def _end(watch: Watch, source: _Peer, line: str, cause: str, code: int) -> None:
    """Pass the news on, then end; nothing if this process is ending anyway and has said why."""
    if watch.is_failing:
        return
    _tell(watch, line, but=source)
    if watch.process_id == 0:
        _wait_until_gone(watch)
    where = watch.where()
    standing = f", while at {where}" if where else ""
    say_and_exit(f"{cause}; process {watch.process_id} ends with it{standing}", code)


def _wait_until_gone(watch: Watch) -> None:
    deadline = time.monotonic() + _LAST_FAREWELL_SECONDS
    for peer in watch.peers.values():
        with suppress(OSError):  # a timeout, or a connection that is broken already
            while not peer.is_gone:
                peer.connection.settimeout(max(deadline - time.monotonic(), 0.001))
                peer.is_gone = not peer.connection.recv(4096)


def _tell(watch: Watch, line: str, *, but: _Peer | None = None) -> None:
    """Send a line to all others; whoever is not there any more will be missed by its silence."""
    with watch.sending:
        for peer in watch.peers.values():
            if peer is not but:
                with suppress(OSError):
                    peer.connection.sendall(f"{line}\n".encode())
