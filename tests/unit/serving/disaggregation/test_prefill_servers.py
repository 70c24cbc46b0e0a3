# SPDX-License-Identifier: Apache-2.0
"""The servers that compute prompts for others, over real gRPC with scripted answers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kserve_server import HANG, KServeServer, Step
from tritonclient.grpc import service_pb2

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.disaggregation.prefill_servers import PrefillServers
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.requests.prompt_batch import Row
from trireme.base.free_ports import free_ports

WAIT_S = 10.0
ROW: Row = {
    "input_ids": np.array([[5, 6, 7]], np.int32),
    "request_output_len": np.array([9], np.int32),
    "runtime_top_k": np.array([[3]], np.int32),
    "temperature": np.array([0.5], np.float32),
    "lora_name": np.array([b"style"], np.object_),
    "bad_words_list": np.array([[[4, 9], [1, 2]]], np.int32),
    "guided_decoding_guide_type": np.array([[b"json"]], np.object_),
    "streaming": np.array([True]),
    "return_release": np.array([[True]]),
    "stream_context": np.array([[1, 2]], np.uint8),
    "use_draft_logits": np.array([[True]]),
}


def handed_over(phase: bytes, finish_reason: bytes = b"length") -> Step:
    reply = service_pb2.ModelInferResponse()
    reply.outputs.add(name="finish_reason", datatype="BYTES", shape=[1, 1])
    reply.raw_output_contents.append(len(finish_reason).to_bytes(4, "little") + finish_reason)
    reply.outputs.add(name="context_phase_params", datatype="UINT8", shape=[1, len(phase)])
    reply.raw_output_contents.append(phase)
    return service_pb2.ModelStreamInferResponse(infer_response=reply)


class Asking:
    """The servers of a deployment, and what came of each prompt."""

    def __init__(self, servers: PrefillServers, outcomes: list[str]) -> None:
        self.servers, self.outcomes = servers, outcomes
        self._phases: dict[int, list[bytes | None]] = {}
        self._news = threading.Condition()

    def begin(self, key: int) -> None:
        def then(phase: bytes | None) -> None:
            with self._news:
                self._phases.setdefault(key, []).append(phase)
                self._news.notify_all()

        self.servers.ask(key, ROW, then, request_id=f"request {key}")

    def result(self, key: int) -> bytes | None:
        with self._news:
            assert self._news.wait_for(lambda: key in self._phases, WAIT_S)
            [phase] = self._phases[key]
            return phase

    def ask(self, key: int) -> bytes | None:
        self.begin(key)
        return self.result(key)


@contextmanager
def asking(*urls: str, **options: object) -> Iterator[Asking]:
    spec = PrefillServersSpec.model_validate({"urls": urls, "min_prompt_tokens": 3, "timeout_s": 5.0} | options)
    outcomes: list[str] = []
    servers = PrefillServers(spec, release=4, note=outcomes.append)
    try:
        yield Asking(servers, outcomes)
    finally:
        servers.close()


def test_a_prompt_is_asked_for_with_all_that_is_its_own_and_nothing_of_its_answer() -> None:
    with KServeServer(handed_over(b"phase")) as server, asking(server.url) as run:
        assert run.ask(1) == b"phase"
        assert run.outcomes == ["computed"]
        [asked] = server.requests
        assert (asked.model_name, asked.model_version, asked.id) == ("tensorrt_llm", "4", "request 1")
        assert asked.parameters["request_type"].string_param == "context_only"
        assert [output.name for output in asked.outputs] == ["context_phase_params", "finish_reason"]
        found = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in asked.inputs}
        assert found == {
            "input_ids": ("INT32", [1, 3]),
            "request_output_len": ("INT32", [1, 1]),
            "runtime_top_k": ("INT32", [1, 1]),
            "temperature": ("FP32", [1, 1]),
            "lora_name": ("BYTES", [1, 1]),
            "bad_words_list": ("INT32", [1, 2, 2]),
            "guided_decoding_guide_type": ("BYTES", [1, 1]),
            "return_finish_reason": ("BOOL", [1, 1]),
        }
        raw = dict(zip((tensor.name for tensor in asked.inputs), asked.raw_input_contents, strict=True))
        assert raw["input_ids"] == np.array([5, 6, 7], np.int32).tobytes()
        assert raw["lora_name"] == b"\x05\0\0\0style"


def test_which_prompts_are_asked_for() -> None:
    def takes(*, num_tokens: int = 3, num_output_ids: int = 0, **sampling: Any) -> bool:
        params = SamplingParams(**{"max_tokens": 5} | sampling)
        return run.servers.takes(
            GenerationRequest(key=1, input_ids=[7] * num_tokens, sampling=params, num_output_ids=num_output_ids)
        )

    with asking("127.0.0.1:1") as run:
        assert takes()
        assert takes(temperature=0.5, top_k=4, lora_name="style", guide_type="json")
        assert not takes(num_tokens=2)
        assert not takes(num_output_ids=1)
        for field, value in (
            ("max_tokens", 1), ("beam_width", 2), ("is_context_only", True), ("context_phase_params", b"x"),
            ("return_log_probs", True),
            ("return_context_logits", True), ("return_generation_logits", True),
        ):  # fmt: skip
            changed: dict[str, Any] = {field: value}
            assert not takes(**changed), field


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        ("[UNAVAILABLE reason=queue_full] the queue is full", "refused"),
        ("[INVALID_ARG field=lora_name] no such adapter", "refused"),
        (service_pb2.ModelStreamInferResponse(), "failed"),
    ],
    ids=["full", "wrong", "empty"],
)
def test_a_prompt_that_a_server_does_not_compute_is_asked_of_the_next(step: Step, outcome: str) -> None:
    with KServeServer(step) as first, KServeServer(handed_over(b"next")) as second:
        with asking(first.url, second.url) as run:
            assert run.ask(1) == b"next"
            assert run.outcomes == ["computed"]
        with asking(first.url) as run:
            assert run.ask(1) is None
            assert run.outcomes == [outcome]


def test_an_answer_that_its_first_token_ended_is_made_here() -> None:
    with KServeServer(handed_over(b"phase", b"stop")) as server, asking(server.url) as run:
        assert run.ask(1) is None
        assert run.outcomes == ["ended"]


def test_a_server_that_is_away_is_left_alone_for_a_while_and_then_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [port] = free_ports(1)
    with asking(f"127.0.0.1:{port}") as run:
        assert [run.ask(key) for key in (1, 2, 3)] == [None] * 3
        assert run.outcomes == ["failed", "busy", "busy"]
        assert len([one for one in caplog.records if one.name == "trireme.disaggregation"]) == 1
        time.sleep(0.6)
        assert run.ask(4) is None
        assert run.outcomes[-1] == "failed"


def test_a_prompt_that_takes_too_long_is_computed_here() -> None:
    with KServeServer(HANG) as server, asking(server.url, timeout_s=0.3) as run:
        began_s = time.monotonic()
        assert run.ask(1) is None
        assert time.monotonic() - began_s < 3
        assert run.outcomes == ["failed"]
        assert server.was_cancelled.wait(WAIT_S)


def test_more_prompts_than_a_server_takes_are_computed_here_and_the_emptiest_server_is_asked() -> None:
    release = threading.Event()
    with KServeServer(release, handed_over(b"a")) as first, KServeServer(release, handed_over(b"b")) as second:
        with asking(first.url, second.url, max_in_flight=2) as run:
            for key in range(4):
                run.begin(key)
            wait_for(lambda: len(first.requests) == len(second.requests) == 2)
            assert run.ask(5) is None
            release.set()
            assert sorted(str(run.result(key)) for key in range(4)) == ["b'a'", "b'a'", "b'b'", "b'b'"]
        assert run.outcomes == ["busy", *["computed"] * 4]


def test_a_request_that_is_cancelled_goes_on_at_once_and_its_prompt_ends() -> None:
    with KServeServer(HANG) as server, asking(server.url) as run:
        run.begin(1)
        wait_for(lambda: len(server.requests) == 1)
        run.servers.cancel(1)
        run.servers.cancel(2)  # nothing is asked for it
        assert run.result(1) is None
        assert run.outcomes == ["cancelled"]
        assert server.was_cancelled.wait(WAIT_S)


def test_what_is_asked_when_the_servers_are_closed_goes_on_nowhere() -> None:
    with KServeServer(HANG) as server:
        with asking(server.url) as run:
            run.begin(1)
            wait_for(lambda: len(server.requests) == 1)
        assert run.outcomes == []
        assert server.was_cancelled.wait(WAIT_S)


def test_a_key_goes_with_each_prompt_as_the_file_has_it(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first\n")
    with KServeServer(handed_over(b"x")) as server, asking(server.url, token_file=key, token_header="x-key") as run:
        assert run.ask(1) == b"x"
        key.write_text("second\n")
        assert run.ask(2) == b"x"
        assert [one["x-key"] for one in server.stream_metadata] == ["first", "second"]
        key.unlink()
        assert run.ask(3) is None
        assert run.outcomes == ["computed", "computed", "failed"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"urls": []}, "at least 1 item"),
        ({"urls": ["prefill"]}, "host:port of a server's gRPC port"),
        ({"urls": ["http://prefill:8001"]}, "host:port of a server's gRPC port"),
        ({"urls": ["a:1", "a:1"]}, "urls must differ"),
        ({"urls": ["a:70000"]}, "host:port"),
        ({"urls": ["dns:///pods"]}, "dns:///NAME:PORT"),
        ({"urls": ["grpcs+dns:///pods:8001", "dns:///pods:8001"], "ca_file": "/ca"}, "for TLS"),
        ({"cert_file": "/cert"}, "cert_file and key_file go together"),
        ({"ca_file": "/ca"}, "for TLS"),
        ({"timeout_s": 0}, "greater than 0"),
    ],
)
def test_a_deployment_that_names_them_wrongly_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PrefillServersSpec.model_validate({"urls": ["a:1"]} | change)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"provider": "openvino", "dir": "/engine"}, "prefill_servers needs an engine that takes KV cache of others"),
        ({"provider": "vllm", "dir": "/engine"}, "name engine.kv_transfer"),
        ({"provider": "vllm", "dir": "/engine", "kv_transfer": {"role": "prefill"}}, "set decode or both"),
    ],
    ids=["no such provider", "no transfer", "wrong role"],
)
def test_an_engine_that_takes_no_kv_cache_has_no_prefill_servers(engine: dict[str, object], reason: str) -> None:
    fields = {"release": 1, "tokenizer": {"dir": "/tokenizer"}, "prefill_servers": {"urls": ["a:1"]}}
    with pytest.raises(ValueError, match=reason):
        ReleaseSpec.model_validate(fields | {"engine": engine})
