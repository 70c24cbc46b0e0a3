# SPDX-License-Identifier: Apache-2.0
"""A client that wants a server down and knows only its protocols: ``hostile_client.py --http PORT --grpc PORT ...``.

A program of its own, with nothing of the project in it: sockets, HTTP, gRPC and KServe's messages. Seeded. It holds
slow connections all the time and sends one hostile request after the other. When it ends it prints, as JSON, how many
of each kind it sent and how they ended.
"""

import argparse
import gzip
import json
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODELS = ["ensemble", "ensemble_graph", "tensorrt_llm_bls", "tensorrt_llm", "preprocessing", "postprocessing", "nobody"]
TYPES = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES", "NONE",
]  # fmt: skip
INPUTS = [
    "text_input", "max_tokens", "stream", "bad_words", "stop_words", "end_id", "pad_id", "top_k", "top_p",
    "temperature", "seed", "return_log_probs", "embedding_bias_words", "embedding_bias_weights", "messages",
    "num_return_sequences",
    "lora_task_id", "lora_weights", "lora_config", "prompt_embedding_table", "guided_decoding_guide_type", "beam_width",
    "guided_decoding_guide", "decoder_text_input", "input_ids", "input_lengths", "request_output_len", "QUERY",
    "REQUEST_OUTPUT_LEN", "TOKENS_BATCH", "SEQUENCE_LENGTH", "stream_context", "stream_state", "draft_input_ids",
    "runtime_top_k", "retention_priority", "nothing",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 3, 127, 128, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63)]
DIMS = [0, 1, 1, 1, 2, 3, 7, 100, 65_536, 2**31, 2**40, 2**62, -1]
PATHS = [
    *[f"/v2/models/{model}/{kind}" for model in MODELS for kind in ("generate", "generate_stream", "infer")],
    *["/v2", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index", "/v2/repository/models/ensemble/unload"],
    *["/v2/repository/models/ensemble/load", "/v2/trace/setting", "/v2/logging", "/metrics", "/", "/v2/%2e%2e/%00"],
    *["/v2/systemsharedmemory/region/a/register", "/v2/cudasharedmemory/status", "/v2/models/ensemble/config"],
]
CONTENT_TYPES = [
    "application/json", "application/x-www-form-urlencoded", "application/octet-stream", "text/plain", "a/b",
    "multipart/form-data; boundary=x", "",
]  # fmt: skip
LARGEST = 100_000_000
ANSWER_S = 30


class Hostile:
    """A run of the hostile client."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._random = random.Random(given.seed)
        self._given = given
        self.counts: Counter[str] = Counter()
        self._options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def run(self) -> None:
        """Run until the time is over."""
        end_s = time.monotonic() + self._given.seconds
        slow = threading.Thread(target=self._hold_slow, args=(end_s,), daemon=True)
        slow.start()
        kinds: list[tuple[Callable[[], str], int]] = [
            (self.http_body, 6), (self.deep_json, 3), (self.half_request, 4), (self.wrong_head, 4), (self.bomb, 1),
            (self.infer_tensors, 14), (self.deadly_header, 3), (self.large_message, 2), (self.left_stream, 6),
            (self.wrong_frames, 4), (self.many_fields, 1), (self.wrong_call, 2), (self.generate_numbers, 6),
        ]  # fmt: skip
        works, weights = [kind for kind, _ in kinds], [weight for _, weight in kinds]
        period_s = 1 / self._given.rate
        next_s = time.monotonic()
        while time.monotonic() < end_s:
            [work] = self._random.choices(works, weights)
            try:
                outcome = work()
            except (OSError, grpc.RpcError) as exc:
                outcome = type(exc).__name__ if isinstance(exc, OSError) else str(exc.code())
            self.counts[f"{work.__name__}: {outcome}"] += 1
            next_s = max(next_s + period_s, time.monotonic() - 1)
            time.sleep(max(0.0, next_s - time.monotonic()))
        slow.join(10)

    # Over HTTP

    def http_body(self) -> str:
        """Send a body of 0 to 100 MB, of anything."""
        size = self._size()
        kind = self._random.randrange(4)
        piece = [b"a", b"\\u0000", bytes(self._random.randrange(256) for _ in range(1000)), b'{"a":['][kind]
        body = (piece * (size // len(piece) + 1))[:size]
        if self._random.random() < 0.4:
            body = b'{"text_input": "%s", "max_tokens": 4}' % body.replace(b'"', b"'").replace(b"\\", b"/")
        return self._post(self._random.choice(PATHS), body)

    def deep_json(self) -> str:
        depth = 10 ** self._random.randrange(1, 7)
        first, last = self._random.choice([(b"[", b"]"), (b'{"a":', b"}")])
        value = first * depth + (b"1" if self._random.random() < 0.7 else b"") + last * depth
        body = self._random.choice([value, b'{"text_input": %s, "max_tokens": 3}' % value, b'{"inputs": %s}' % value])
        return self._post(self._random.choice(PATHS), body)

    def generate_numbers(self) -> str:
        """Send JSON that is well formed."""
        body: dict[str, object] = {"text_input": "hello", "max_tokens": 3}
        for _ in range(self._random.randrange(4)):
            values: list[object] = [
                *NUMBERS,
                1e308,
                1.5,
                "text",
                "",
                None,
                True,
                [],
                {},
                [1, 2],
                ["a", "b"],
                [["a"]],
                "\ud800",
            ]
            body[self._random.choice(INPUTS)] = self._random.choice(values)
        model = self._random.choice(MODELS)
        kind = self._random.choice(["generate", "generate_stream", "infer"])
        return self._post(f"/v2/models/{model}/{kind}", json.dumps(body).encode())

    def bomb(self) -> str:
        """Send a body that is a thousand times as large when it is unpacked."""
        packed = gzip.compress(b"0" * self._random.choice([1_000_000, LARGEST]), 9)
        return self._post(self._random.choice(PATHS), packed, **{"content-encoding": "gzip"})

    def half_request(self) -> str:
        body = b'{"text_input": "hello", "max_tokens": 1000}'
        whole = self._head("POST", self._random.choice(PATHS), len(body)) + body
        with self._connect(self._random.choice([self._given.http, self._given.grpc, self._given.metrics])) as client:
            client.sendall(whole[: self._random.randrange(len(whole) + 1)])
            if self._random.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    def wrong_head(self) -> str:
        choice = self._random.choice
        line = choice([b"GET", b"POST", b"PUT", b"\x00\xff", b"PRI"]) + b" " + choice(PATHS).encode()
        if self._random.random() < 0.3:
            line += b"?" + b"a=b&" * 10 ** self._random.randrange(6)
        headers = b"host: x\r\n"
        for _ in range(self._random.randrange(6)):
            headers += choice(
                [
                    b"content-length: 99999999999999999999\r\n", b"content-length: -5\r\n", b"content-length: 3\r\n",
                    b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip, chunked\r\n",
                    b"a: " + b"b" * 100_000 + b"\r\n",
                    b"inference-header-content-length: 99999999999\r\n", b"inference-header-content-length: -1\r\n",
                    b"a: b\r\n" * 1_000, b": x\r\n", b"a\x00b: c\r\n", b"expect: 100-continue\r\n", b"upgrade: h2c\r\n",
                    b"trireme-control-key: x\r\n", b"triton_grpc_error: true\r\n", b"trireme-stream: 1\r\n",
                ]
            )  # fmt: skip
        port = choice([self._given.http, self._given.http, self._given.metrics, self._given.grpc])
        return self._send(port, line + b" HTTP/1.1\r\n" + headers + b"\r\n" + b"zz\r\n{}")

    # Over gRPC

    def infer_tensors(self) -> str:
        """Send tensors of any name, type, shape and contents, now and then those of a good request among them."""
        return self._ask(self._tensors())

    def deadly_header(self) -> str:
        """Send the header that asks 2.51 for a status in place of an error in the stream."""
        good, bad = self._good(200), self._good(0)
        metadata = (("triton_grpc_error", "true"), ("trireme-stream", "x"))
        with self._channel() as channel:
            requests = [good, bad] if self._random.random() < 0.7 else [bad]
            return self._read(channel, requests, metadata, most=5)

    def large_message(self) -> str:
        message = self._good(3)
        message.raw_input_contents[0] = b"\0\0\0\0" + b"a" * self._size()
        return self._ask(message, compression=self._random.choice([None, grpc.Compression.Gzip]))

    def many_fields(self) -> str:
        """Send fields that take two bytes each on the line, and a hundred in a parser's memory."""
        message = service_pb2.ModelInferRequest(model_name="ensemble")
        tail = b"\x2a\x00" * 10 ** self._random.randrange(3, 7)
        with self._channel() as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            call(message.SerializeToString() + tail, timeout=ANSWER_S)
        return "answered"

    def wrong_call(self) -> str:
        """Send anything as the message of any method."""
        methods = "ServerLive ModelInfer ModelStreamInfer RepositoryIndex RepositoryModelUnload ModelConfig Nothing"
        method = self._random.choice(methods.split())
        message = self._random.randbytes(self._random.choice([0, 1, 10, 1000, 100_000]))
        with self._channel() as channel:
            answers = channel.unary_stream(f"/inference.GRPCInferenceService/{method}")(message, timeout=ANSWER_S)
            return f"{sum(1 for _ in answers)} answers"

    def left_stream(self) -> str:
        """Leave at any moment, by a reset, by the end of the connection, or by reading nothing."""
        message = self._good(self._random.choice([1, 3, 50, 1000]))
        channel = self._channel()
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]))
        time.sleep(self._random.choice([0, 0, 0.005, 0.05, 0.3]))
        if self._random.random() < 0.5:
            call.cancel()
        channel.close()
        return "left"

    def wrong_frames(self) -> str:
        """Send bytes that are HTTP/2, more or less."""
        choice = self._random.choice
        data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if self._random.random() < 0.9 else b"PRI"
        for _ in range(self._random.choice([1, 5, 50, 3000])):
            payload = self._random.randbytes(choice([0, 1, 4, 6, 8, 100]))
            length = len(payload) if self._random.random() < 0.9 else choice([0, 1, 2**24 - 1])
            head = struct.pack(">I", length)[1:] + struct.pack(
                ">BBI", choice(range(12)), choice(range(256)), choice(range(9))
            )
            data += head + payload
        return self._send(self._given.grpc, data)

    # What they share

    def _size(self) -> int:
        """Return a size of 0 to 100 MB: each order of magnitude as often, the largest seldom."""
        return min(int(10 ** self._random.uniform(0, 8 if self._random.random() < 0.15 else 6.5)), LARGEST)

    def _good(self, max_tokens: int) -> Any:
        message = service_pb2.ModelInferRequest(model_name=self._random.choice(MODELS[:3]))
        for name, datatype, raw in (
            ("text_input", "BYTES", b"\x05\0\0\0hello"),
            ("max_tokens", "INT32", struct.pack("<i", max_tokens)),
            ("stream", "BOOL", b"\x01"),
        ):
            message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
            message.raw_input_contents.append(raw)
        return message

    def _tensors(self) -> Any:
        choice = self._random.choice
        message = self._good(3) if self._random.random() < 0.5 else service_pb2.ModelInferRequest()
        message.model_name = choice(MODELS)
        message.model_version = choice(["", "", "1", "9", "-1", "x", "9" * 30])
        message.id = choice(["", "a", "b" * 10_000])
        for _ in range(self._random.randrange(5)):
            shape = [choice(DIMS) for _ in range(self._random.randrange(5))]
            tensor = message.inputs.add(name=choice(INPUTS), datatype=choice(TYPES), shape=shape)
            for key in ("shared_memory_region", "binary_data_size", "x"):
                if self._random.random() < 0.03:
                    tensor.parameters[key].string_param = choice(["", "a", "/triton_python_backend_shm_region_1"])
            count = min(abs(shape[0]) if shape else 1, 1000)
            raws = [
                b"",
                struct.pack("<q", choice(NUMBERS)) * count,
                self._random.randbytes(choice([1, 4, 100, 10_000])),
            ]
            message.raw_input_contents.append(choice(raws))
        for name, value in (("priority", -1), ("timeout", 2**62), ("release", 7), ("sequence_id", 5), ("x", 1)):
            if self._random.random() < 0.05:
                message.parameters[name].int64_param = value
        if self._random.random() < 0.1:
            message.parameters["p" * choice([1, 100, 50_000])].string_param = "v" * choice([0, 10, 500_000])
        for _ in range(self._random.randrange(3)):
            output = message.outputs.add(name=choice(["text_output", "output_ids", "nothing", ""]))
            if self._random.random() < 0.2:
                output.parameters["classification"].int64_param = choice(NUMBERS)
        return message

    def _ask(self, message: Any, **more: Any) -> str:
        with self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            if self._random.random() < 0.3:
                stub.ModelInfer(message, timeout=ANSWER_S, **more)
                return "answered"
            return self._read(channel, [message], (), most=1000)

    def _read(self, channel: Any, requests: list[Any], metadata: Any, *, most: int) -> str:
        is_over = threading.Event()

        def each() -> Iterator[Any]:
            yield from requests
            is_over.wait(ANSWER_S)

        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(each(), metadata=metadata, timeout=ANSWER_S)
        try:
            for _, response in zip(range(most), call, strict=False):
                if response.error_message:
                    return "error in the stream"
                if response.infer_response.parameters["triton_final_response"].bool_param:
                    return "answered"
            return "answered in part"
        finally:
            is_over.set()
            call.cancel()

    def _channel(self) -> Any:
        return grpc.insecure_channel(f"127.0.0.1:{self._given.grpc}", options=self._options)

    def _connect(self, port: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)

    def _head(self, method: str, path: str, length: int, **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {length}", "connection: close"]
        lines.append(f"content-type: {self._random.choice(CONTENT_TYPES)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def _post(self, path: str, body: bytes, **headers: str) -> str:
        return self._send(self._given.http, self._head("POST", path, len(body), **headers), body)

    def _send(self, port: int, *data: bytes) -> str:
        """Send, and read what comes for as long as something does."""
        answer = b""
        with self._connect(port) as client:
            try:
                for piece in data:
                    client.sendall(piece)
                client.settimeout(5 if port == self._given.grpc else ANSWER_S)
                while received := client.recv(1 << 16):
                    answer = answer or received
            except TimeoutError:
                return "silence"
            except OSError:
                pass
        if port == self._given.grpc:
            return "frames" if answer else "hung up on"
        return answer.split(b" ", 2)[1].decode(errors="replace")[:3] if answer.count(b" ") > 1 else "hung up on"

    def _hold_slow(self, end_s: float) -> None:
        """Hold connections that send a byte a second, and open others for those that are ended."""
        rng = random.Random(self._given.seed + 1)
        whole = self._head("POST", "/v2/models/ensemble/generate", 10_000) + b'{"text_input": "' + b"a" * 9_000
        ports = [self._given.http, self._given.grpc, self._given.metrics]
        held: list[tuple[socket.socket, Iterator[int]]] = []
        while time.monotonic() < end_s:
            while len(held) < self._given.slow:
                try:
                    client = self._connect(rng.choice(ports))
                except OSError:
                    break
                client.setblocking(False)
                held.append((client, iter(whole)))
            for client, rest in list(held):
                try:
                    client.send(bytes([next(rest)]))
                    if not client.recv(1):
                        raise ConnectionError
                except BlockingIOError:
                    pass
                except (OSError, StopIteration):
                    client.close()
                    held.remove((client, rest))
                    self.counts["slow connections that were ended"] += 1
            time.sleep(1)
        for client, _ in held:
            client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    for name in ("http", "grpc", "metrics"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=4, help="requests a second, at most")
    parser.add_argument("--slow", type=int, default=500, help="slow connections")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    hostile = Hostile(parser.parse_args())
    hostile.run()
    sys.stdout.write(json.dumps(hostile.counts))


if __name__ == "__main__":
    main()
