# SPDX-License-Identifier: Apache-2.0
"""aiperf's raw export, a line for each request with every event and its time, as records of a load."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from clients.error_tokens import parse_error
from clients.infer_messages import GenerateChunk
from clients.load.openai.openai_errors import http_error
from clients.load.openai.openai_stream import CompletionStream
from clients.load_run.load_record import DONE, LoadRecord
from trireme.base.errors import ServerError, ServingError
from trireme.base.known_types import known


class _Metadata(msgspec.Struct):
    session_num: int
    request_start_ns: int
    request_end_ns: int
    credit_issued_ns: int | None = None
    benchmark_phase: str = "profiling"


class _Packet(msgspec.Struct):
    name: str
    value: str | None = None


class _Response(msgspec.Struct):
    perf_ns: int
    packets: list[_Packet] = []


class _Error(msgspec.Struct):
    message: str = ""
    code: int | None = None


class _Raw(msgspec.Struct):
    metadata: _Metadata
    start_perf_ns: int
    payload: dict[str, Any] | None = None
    responses: list[_Response] = []
    error: _Error | None = None


class _TritonEvent(msgspec.Struct):
    num_output_tokens: int = 0
    num_input_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


def records_of(path: Path, start_epoch_ns: int, *, is_openai: bool, is_open: bool) -> list[LoadRecord]:
    """Return the records in aiperf's raw export.

    Args:
        start_epoch_ns: start of the run, on the machine's clock.
        is_open: requests were due when aiperf meant to send them, and not when it did.

    Raises:
        ServerError: there is no such file, or it is not what this version of aiperf writes.
    """
    try:
        found = msgspec.json.Decoder(known(_Raw)).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as exc:
        raise ServerError(f"aiperf left no raw records that can be read: {exc}") from exc
    measured = [raw for raw in found if raw.metadata.benchmark_phase == "profiling"]
    records = [_record(raw, start_epoch_ns, is_openai=is_openai, is_open=is_open) for raw in measured]
    return sorted(records, key=lambda record: record.due_ns)


def _record(raw: _Raw, start_epoch_ns: int, *, is_openai: bool, is_open: bool) -> LoadRecord:
    sent_ns = raw.metadata.request_start_ns - start_epoch_ns
    due_ns = (raw.metadata.credit_issued_ns or raw.metadata.request_start_ns) - start_epoch_ns
    record = LoadRecord(
        session=raw.metadata.session_num,
        due_ns=due_ns if is_open else sent_ns,
        sent_ns=sent_ns,
        end_ns=raw.metadata.request_end_ns - start_epoch_ns,
        max_tokens=(raw.payload or {}).get("max_tokens"),
        times_ns=[],
        tokens=[],
    )
    offset_ns = sent_ns - raw.start_perf_ns
    events = ((response.perf_ns + offset_ns, packet) for response in raw.responses for packet in response.packets)
    try:
        for chunk in (_openai_chunks if is_openai else _triton_chunks)(events):
            record.add_chunk(chunk)
        if raw.error is not None:
            raise http_error(raw.error.code or 500, raw.error.message.encode())
        record.end = DONE
    except ServingError as exc:
        record.fail(exc)
    return record


def _openai_chunks(events: Iterator[tuple[int, _Packet]]) -> Iterator[GenerateChunk]:
    stream = CompletionStream()
    try:
        for at_ns, packet in events:
            yield from stream.feed(f"{packet.name}: {packet.value}\n".encode(), at_ns)
    except ServingError:
        yield from stream.release()
        raise
    yield from stream.release()


def _triton_chunks(events: Iterator[tuple[int, _Packet]]) -> Iterator[GenerateChunk]:
    for at_ns, packet in events:
        if packet.name != "data":
            continue
        try:
            event = msgspec.json.decode(packet.value or "", type=known(_TritonEvent))
        except msgspec.MsgspecError as exc:
            raise ServerError(f"Triton sent an event that is none of ours: {packet.value}") from exc
        if event.error is not None:
            raise parse_error(event.error)
        yield GenerateChunk(
            text="", finish_reason=event.finish_reason, num_input_tokens=event.num_input_tokens,
            num_output_tokens=event.num_output_tokens, is_final=False, received_ns=at_ns,
        )  # fmt: skip
