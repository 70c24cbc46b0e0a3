# SPDX-License-Identifier: Apache-2.0
"""Messages beside text, on the real server: rendered by the release's own template, over gRPC and HTTP."""

import json
import urllib.request

import pytest
from raw_calls import StreamFailed, stream
from running_server import RunningServer

MESSAGES = json.dumps([{"role": "user", "content": "What is the capital of Italy?"}])
RENDERED = "<|user|>What is the capital of Italy?<|end|><|assistant|>"  # the server puts the begin token before a text
ASK: dict[str, object] = {"max_tokens": 12, "exclude_input_in_output": True}


def text_of(server: RunningServer, model: str, **tensors: object) -> str:
    return "".join(response["text_output"][0].decode() for response in stream(server.url, model, ASK | tensors))


def test_messages_are_answered_as_the_text_is_that_they_render_to(openvino: RunningServer, model: str) -> None:
    assert text_of(openvino, model, messages=MESSAGES).strip() == "The capital of Italy is Rome."
    assert text_of(openvino, model, messages=MESSAGES, stream=True) == text_of(openvino, model, text_input=RENDERED)


def test_messages_over_http_are_a_string_of_json(openvino: RunningServer, model: str) -> None:
    body = json.dumps(ASK | {"messages": MESSAGES}).encode()
    url = f"http://127.0.0.1:{openvino.http_port}/v2/models/{model}/generate"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        assert json.load(answer)["text_output"].strip() == "The capital of Italy is Rome."


def test_messages_that_are_wrong_fail_alone_by_their_path(openvino: RunningServer, model: str) -> None:
    with pytest.raises(StreamFailed, match=r'field="messages\[0\]\.role"\].* must be one of system'):
        text_of(openvino, model, messages='[{"role": "end", "content": ""}]')
    with pytest.raises(StreamFailed, match=r"\[INVALID_ARG field=messages\] text_input and messages are both there"):
        text_of(openvino, model, messages=MESSAGES, text_input="hi")
