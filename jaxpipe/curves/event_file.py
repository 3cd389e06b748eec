"""Curves for TensorBoard: an event file in which every record is one event.

The file is a copy of ``metrics.jsonl``, and whenever a run goes on it is written anew from what that holds:
what a killed run leaves lacks what was not flushed yet, and has steps that will be done again. So each curve
has each step once, in order. Of the old files only the times are kept at which the steps were logged. The new
one starts with the mark of a restart, at which a TensorBoard that looks on forgets what it had read.

A number becomes fp32, as TensorBoard has it.
"""

import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.curves.records import Record, numbers_of

_NAME = "events.out.tfevents"
_FLUSH_EVERY = 5.0
"""Seconds; what is lost when a run is killed is written again when it goes on."""


@dataclass
class EventFile:
    """An open event file; ``records`` is tensorboardX's writer of them."""

    path: Path
    records: Any
    flushed_at: float


@contextmanager
def open_event_file(directory: Path, records: Iterable[Record]) -> Iterator[EventFile]:
    """An event file with ``records``, in the place of all that lie in ``directory``."""
    from tensorboardX.record_writer import RecordWriter

    directory.mkdir(parents=True, exist_ok=True)
    former = sorted(directory.glob(f"{_NAME}.*"))
    times = {key: at for path in former for key, at in _read_times(path)}
    path = directory / f"{_NAME}.{time.time_ns()}.jaxpipe"  # the newest in the order of names, too
    beside = directory / ".unfinished"
    file = EventFile(path, RecordWriter(str(beside)), 0.0)
    try:
        _write_start(file)
        for record in records:
            _write(file, record, times.get(_key(record)))
        file.records.flush()
        beside.replace(path)
        for old in former:
            old.unlink(missing_ok=True)
        yield file
        file.records.flush()
    finally:
        file.records.close()


def add_record(file: EventFile, record: Record) -> None:
    """Append a record's numbers; one without any changes nothing."""
    _write(file, record, None)
    now = time.monotonic()
    if now - file.flushed_at > _FLUSH_EVERY:
        file.records.flush()
        file.flushed_at = now


def _write_start(file: EventFile) -> None:
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    now = time.time()
    file.records.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
    restart = SessionLog(status=SessionLog.START)
    file.records.write(Event(wall_time=now, step=0, session_log=restart).SerializeToString())


def _write(file: EventFile, record: Record, wall_time: float | None) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers_of(record).items()]
    if values:
        event = Event(wall_time=wall_time or time.time(), step=record["step"], summary=Summary(value=values))
        file.records.write(event.SerializeToString())


def _key(record: Record) -> tuple[int, str]:
    """What tells an event from all others: the step, and its first curve."""
    return record["step"], next(iter(numbers_of(record)), "")


def _read_times(path: Path) -> Iterator[tuple[tuple[int, str], float]]:
    from tensorboardX.proto.event_pb2 import Event

    for data in _read_frames(path.read_bytes()):
        event = Event.FromString(data)
        if event.summary.value:
            yield (event.step, event.summary.value[0].tag), event.wall_time


def _read_frames(content: bytes) -> Iterator[bytes]:
    """The payloads of a TFRecord file (length, its CRC, payload, its CRC), up to the first broken one."""
    from tensorboardX.record_writer import masked_crc32c

    start = 0
    while len(content) - start >= 16:
        header = content[start : start + 8]
        (size,) = struct.unpack("<Q", header)
        payload = content[start + 12 : start + 12 + size]
        found = content[start + 8 : start + 12] + content[start + 12 + size : start + 16 + size]
        if found != struct.pack("<II", masked_crc32c(header), masked_crc32c(payload)):
            return
        yield payload
        start += 16 + size
