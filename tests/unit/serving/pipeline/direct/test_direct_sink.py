# SPDX-License-Identifier: Apache-2.0
"""A model's side of the way past Triton: what is written, in which order, and what follows when nobody takes it."""

import socket
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.pipeline.direct import direct_replies
from serving.pipeline.direct.direct_replies import DirectReplies, DirectWay
from serving.pipeline.direct.direct_sink import DirectSink
from serving.process.reply_socket import HEAD, read_names, reply_socket, written_name
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.requests.stream_message import StreamMessages
from serving.requests.tensor_sink import Tensors
from trireme.base.errors import RequestError, ServingError


class Triton:
    """The sink through Triton, which notes what had been written when it was called."""

    takes_one = False
    names = frozenset({"text_output"})

    def __init__(self, written: list[str]) -> None:
        self.said: list[str] = written

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        self.said.append(f"{'final' if is_final else 'more'} {text(tensors)}")

    def fail(self, error: ServingError) -> None:
        self.said.append(f"error {error}")

    def is_cancelled(self) -> bool:
        self.said.append("asked")
        return True

    def named_outputs(self) -> Collection[str]:
        return ()


class Frontend:
    """The socket of a frontend; reads when it is told to."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(reply_socket(folder, "ab12")))
        self._listener.listen()

    def take(self) -> None:
        self.model, _ = self._listener.accept()
        self.model.settimeout(10)
        [name], rest = read_names(self.model.recv(100))
        assert (name, rest) == ("ensemble", b"")

    def name(self, *streams: str) -> None:
        self.model.sendall(b"".join(map(written_name, streams)))

    def read(self, num_messages: int) -> list[tuple[str, str]]:
        found = []
        for _ in range(num_messages):
            length, name_length = HEAD.unpack(self._exactly(HEAD.size))
            name, message = self._exactly(name_length), self._exactly(length)
            response = service_pb2.ModelStreamInferResponse.FromString(message[5:]).infer_response
            assert [output.name for output in response.outputs] == ["text_output"]
            found.append((name.decode(), response.raw_output_contents[0][4:].decode()))
        return found

    def _exactly(self, size: int) -> bytes:
        return self.model.recv(size, socket.MSG_WAITALL) if size else b""

    def close(self) -> None:
        self._listener.close()
        if hasattr(self, "model"):
            self.model.close()


@pytest.fixture
def frontend(tmp_path: Path) -> Iterator[Frontend]:
    found = Frontend(tmp_path)
    yield found
    found.close()


@pytest.fixture
def way(frontend: Frontend, tmp_path: Path) -> Iterator[DirectWay]:
    found = DirectWay(reply_socket(tmp_path, "ab12"), "ensemble")
    frontend.take()
    wait_for_open(found)
    yield found
    found.close()


def wait_for_open(way: DirectWay) -> None:
    for _ in range(1_000):
        if way.is_open:
            return
        threading.Event().wait(0.005)
    pytest.fail("it did not open")


def text(tensors: Tensors) -> str:
    return bytes(tensors["text_output"].item()).decode()


def tensors_of(words: str) -> Tensors:
    return {"text_output": np.array([words.encode()], dtype=np.object_), "num_input_tokens": np.array([[1]])}


def sink_of(way: DirectWay, triton: Triton, name: str = "ab12-7") -> DirectSink:
    return DirectSink(triton, way, name, StreamMessages("ensemble", "1", ""))


def test_all_but_the_last_are_written_and_the_last_goes_through_triton_behind_them(
    way: DirectWay, frontend: Frontend
) -> None:
    triton = Triton([])
    sink = sink_of(way, triton)
    for words in ("a", "b"):
        sink.send(tensors_of(words), is_final=False)
    other = sink_of(way, triton, "ab12-8")
    other.send(tensors_of("c"), is_final=False)
    sink.send(tensors_of("d"), is_final=True)
    assert triton.said == ["final d"]
    assert frontend.read(3) == [("ab12-7", "a"), ("ab12-7", "b"), ("ab12-8", "c")]


def test_a_large_response_and_all_behind_it_go_through_triton(way: DirectWay, frontend: Frontend) -> None:
    triton = Triton([])
    sink = sink_of(way, triton)
    sink.send(tensors_of("a"), is_final=False)
    large = {**tensors_of("b"), "context_logits": np.zeros((1, 300_000), np.float32)}
    for tensors, is_final in ((large, False), (tensors_of("c"), False), (tensors_of("d"), True)):
        sink.send(tensors, is_final=is_final)
    assert triton.said == ["more b", "more c", "final d"]
    assert frontend.read(1) == [("ab12-7", "a")]


def test_an_error_goes_through_triton_behind_what_was_kept(way: DirectWay, frontend: Frontend) -> None:
    triton = Triton([])
    sink = sink_of(way, triton)
    sink.send(tensors_of("a"), is_final=False)
    sink.fail(RequestError("no", field="x"))
    assert triton.said == ["error [INVALID_ARG field=x] no"]
    assert frontend.read(1) == [("ab12-7", "a")]


def test_a_request_whose_responses_were_lost_fails(way: DirectWay, frontend: Frontend) -> None:
    begun, unbegun, triton = sink_of(way, Triton([])), sink_of(way, Triton([])), Triton([])
    begun.send(tensors_of("a"), is_final=False)
    frontend.model.close()
    lost = sink_of(way, triton)
    lost.send(tensors_of("a"), is_final=False)
    lost.send(tensors_of("b"), is_final=True)
    assert triton.said == [
        "error [UNAVAILABLE reason=frontend_died] the server's frontend did not take the whole answer; send it again"
    ]
    begun.send(tensors_of("b"), is_final=False)  # no error: its client may be gone, and Triton will say so
    unbegun.send(tensors_of("all"), is_final=True)
    assert unbegun._sink.said == ["final all"]  # type: ignore[attr-defined]


def test_triton_is_asked_for_the_client_once_the_frontend_has_gone(way: DirectWay, frontend: Frontend) -> None:
    triton = Triton([])
    sink = sink_of(way, triton)
    assert not sink.is_cancelled()
    assert not triton.said
    frontend.model.close()  # nothing was written, so no write has failed
    assert sink.is_cancelled()
    assert triton.said == ["asked"]


def test_a_frontend_that_takes_nothing_is_given_up(
    frontend: Frontend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_replies, "_SEND_S", 0.2)
    way = DirectWay(reply_socket(tmp_path, "ab12"), "ensemble")
    frontend.take()
    wait_for_open(way)
    triton = Triton([])
    sink = sink_of(way, triton)
    for _ in range(20):
        sink.send(tensors_of("x" * 1_000_000), is_final=False)
    sink.send(tensors_of("end"), is_final=True)
    assert not way.is_open
    assert triton.said[0].startswith("error [UNAVAILABLE reason=frontend_died]")
    way.close()


def test_threads_write_whole_messages_and_each_stream_in_its_order(way: DirectWay, frontend: Frontend) -> None:
    def work(stream: int) -> None:
        sink = sink_of(way, Triton([]), f"ab12-{stream}")
        for number in range(200):
            sink.send(tensors_of(f"{number:0{1 + number * stream}}"), is_final=False)
            if number % 3 == stream % 3:
                way.flush()
        way.flush()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(8)]
    for thread in threads:
        thread.start()
    found = frontend.read(1_600)
    for thread in threads:
        thread.join()
    for stream in range(8):
        assert [int(words) for name, words in found if name == f"ab12-{stream}"] == list(range(200))


def test_a_request_that_the_frontend_names_has_the_way_once(
    frontend: Frontend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    replies = DirectReplies()
    assert replies.way_of("ab12-1", "ensemble") is None  # not yet: the request goes through Triton
    frontend.take()
    way = replies._ways["ab12"]
    wait_for_open(way)
    assert replies.way_of("ab12-1", "ensemble") is None  # another model's request, with the parameters of its own
    frontend.name("ab12-2", "ab12-1", "ab12-2")
    assert replies.way_of("ab12-2", "ensemble") is replies.way_of("ab12-1", "ensemble") is way
    assert replies.way_of("ab12-1", "ensemble") is None
    assert replies.way_of("ab12-2", "ensemble") is way
    assert replies.way_of("ab12-2", "ensemble") is None
    assert list(replies._ways.values()) == [way]
    way.close()
    assert replies.way_of("ab12-1", "ensemble") is None


def test_names_come_in_pieces_and_as_many_as_are_kept(
    way: DirectWay, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_replies, "_MAX_NAMED", 10)
    monkeypatch.setattr(direct_replies, "_READ_BYTES", 8)
    frontend.name(*(f"ab12-{number}" for number in range(30)))
    assert way.take("ab12-29")
    assert not way.take("ab12-2")
    whole = written_name("ab12-31")
    frontend.model.sendall(whole[:4])
    assert not way.take("ab12-31")
    frontend.model.sendall(whole[4:])
    assert way.take("ab12-31")


@pytest.mark.parametrize("name", ["", "../x-1", "cd34-1"])
def test_a_stream_of_no_frontend_has_no_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    assert DirectReplies().way_of(name, "ensemble") is None
    monkeypatch.delenv(RUN_DIR_VARIABLE)
    assert DirectReplies().way_of("ab12-1", "ensemble") is None
