# SPDX-License-Identifier: Apache-2.0
"""Errors become Triton's, with our text and the nearest of its codes; the unexpected is logged and not shown."""

import json
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from serving.pipeline.abandoned_streams import find_abandoned
from serving.pipeline.chunk_replies import EngineRefusal
from serving.pipeline.request_origin import NO_ORIGIN
from serving.pipeline.triton_adapter import (
    Responses,
    error_response,
    final_flag,
    guarded,
    release_folder,
    start_each,
    triton_error,
)
from serving.requests.stream_state import StreamCheck
from serving.telemetry.request_observer import UNTRACED
from serving.telemetry.request_tracer import RequestTracer
from trireme.base.errors import (
    BuildError,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    SpecError,
    Unavailable,
)

CODES = [
    (RequestError("no", field="top_p", value=2), "INVALID_ARG", "[INVALID_ARG field=top_p value=2] no"),
    (SpecError("no"), "INVALID_ARG", "[INVALID_SPEC] no"),
    (Unavailable("no", reason="draining"), "UNAVAILABLE", "[UNAVAILABLE reason=draining] no"),
    (QueueFull("no", retry_after_ms=5), "UNAVAILABLE", "[UNAVAILABLE retry_after_ms=5] no"),
    (RequestTimeout("no"), "UNAVAILABLE", "[DEADLINE] no"),
    (RequestCancelled("no"), "CANCELLED", "[CANCELLED] no"),
    (ServerError("no"), "INTERNAL", "[INTERNAL] no"),
    (BuildError("no"), "INTERNAL", "[BUILD] no"),
    (EngineRefusal("[INVALID_ARG field=max_tokens] no"), "INVALID_ARG", "[INVALID_ARG field=max_tokens] no"),
    (EngineRefusal("[UNAVAILABLE] no"), "UNAVAILABLE", "[UNAVAILABLE] no"),
]


def request() -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m", request_id="r1")


@pytest.mark.parametrize(("error", "code", "text"), CODES)
def test_every_error_has_its_text_and_the_nearest_code(error: ServingError, code: str, text: str) -> None:
    translated: pb_utils.TritonError = triton_error(error)
    assert translated.message() == text
    assert translated.code() == getattr(pb_utils.TritonError, code)


def test_an_error_response_holds_nothing_but_the_error() -> None:
    response: pb_utils.InferenceResponse = error_response(ServerError("no"))
    assert response.has_error()
    assert response.output_tensors() == []


def test_what_goes_well_is_passed_on() -> None:
    assert guarded(lambda request: request.request_id(), request()) == "r1"


def test_an_expected_error_is_the_response() -> None:
    def refuse(_: object) -> None:
        raise RequestError("no")

    assert guarded(refuse, request()).error().message() == "[INVALID_ARG] no"


def test_a_refusal_that_cannot_be_sent_keeps_no_other_request_from_being_started(
    caplog: pytest.LogCaptureFixture,
) -> None:
    requests, started = [request(), request(), request()], []

    def start(asked: pb_utils.InferenceRequest, *, observer: object) -> None:
        assert observer is UNTRACED
        started.append(asked)
        if asked is requests[0]:  # it has had its last response, and breaks down after that
            asked.get_response_sender().send(flags=final_flag())
        raise RequestError("no")

    start_each(start, requests, RequestTracer({"model_name": "m", "model_version": "1", "model_config": "{}"}))
    assert started == requests
    errors = [asked.get_response_sender().responses[-1].error() for asked in requests[1:]]
    assert [error and error.message() for error in errors] == ["[INVALID_ARG] no"] * 2
    assert "the refusal of request 'r1' could not be sent" in caplog.text


def test_an_unexpected_one_goes_to_the_log_with_its_request_and_shows_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def break_down(_: object) -> None:
        raise KeyError("our own secret")

    error: pb_utils.TritonError = guarded(break_down, request()).error()
    assert error.message() == "[INTERNAL] unexpected error; the server's log has the traceback"
    assert error.code() == pb_utils.TritonError.INTERNAL
    assert "unexpected error in request 'r1'" in caplog.text
    assert "our own secret" in caplog.text


def test_a_release_lies_in_its_version_folder() -> None:
    args = {"model_repository": "/repo/preprocessing", "model_version": "3"}
    assert release_folder(args) == Path("/repo/preprocessing/3")


def test_the_final_flag_is_the_stubs() -> None:
    assert final_flag() == pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@pytest.mark.parametrize("is_decoupled", [True, False])
def test_an_output_that_the_request_does_not_name_never_gets_to_the_stub(is_decoupled: bool) -> None:
    config = json.dumps({"model_transaction_policy": {"decoupled": is_decoupled}})
    asked = pb_utils.InferenceRequest(
        inputs=[], requested_output_names=["text_output", "num_input_tokens"], model_name="ensemble"
    )
    sink = Responses({"model_config": config, "model_name": "ensemble", "model_version": "1"}, step="ensemble").sink(
        asked, NO_ORIGIN
    )
    one = np.array([[1]], dtype=np.int32)
    text = np.array([b"x"], dtype=np.object_)
    sink.send({"text_output": text, "finish_reason": text, "num_preemptions": one}, is_final=True)
    [response] = asked.get_response_sender().wait()
    assert [tensor.name() for tensor in response.output_tensors()] == ["text_output"]


class Answering:
    """A model that gives one answer to everything."""

    def __init__(self, response: pb_utils.InferenceResponse) -> None:
        self._response = response

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._response for _ in requests]


def test_a_check_is_asked_of_the_models_own_detokenizer_of_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pb_utils.Tensor("OUTPUT", np.array([b"\x92\x07\x08"], dtype=np.object_))
    right, newer = Answering(pb_utils.InferenceResponse([keys])), Answering(error_response(ServerError("another's")))
    loaded = {"chat_postprocessing/2": right, "chat_postprocessing": newer, "postprocessing": newer}
    monkeypatch.setattr(pb_utils.InferenceRequest, "loaded_models", loaded)
    assert find_abandoned(StreamCheck({7: 1}), model="chat_postprocessing", version="2") == [7, 8]


def test_a_check_that_is_not_answered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match=r"no check of the streams: .*not ready"):
        find_abandoned(StreamCheck({}), model="postprocessing", version="1")
    model = Answering(error_response(ServerError("broken")))
    monkeypatch.setattr(pb_utils.InferenceRequest, "loaded_models", {"postprocessing": model})
    with pytest.raises(ServerError, match=r"no check of the streams: .*broken"):
        find_abandoned(StreamCheck({}), model="postprocessing", version="1")
