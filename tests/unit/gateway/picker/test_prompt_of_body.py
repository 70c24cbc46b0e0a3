# SPDX-License-Identifier: Apache-2.0
"""The prompts in bodies of several APIs, and bodies that have none."""

import json

import numpy as np
import pytest

from clients.infer_messages import GenerateRequest
from gateway.picker.prompt_of_body import Prompt, prompt_of
from gateway.servers.prefixes import numbers_of
from serving.pipeline.prompt_prefix import prefix_of

CHAT: list[dict[str, object]] = [{"role": "user", "content": "x" * 600}]
TEXT = "word " * 200
OF_CHAT = tuple(numbers_of(GenerateRequest(messages=CHAT, max_tokens=1)))
OF_TEXT = tuple(numbers_of(GenerateRequest(text_input=TEXT, max_tokens=1)))


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/v1/chat/completions", {"model": "chat", "messages": CHAT}, Prompt("chat", OF_CHAT)),
        ("/v1/messages", {"model": "chat", "messages": CHAT, "max_tokens": 9}, Prompt("chat", OF_CHAT)),
        ("/v1/responses", {"model": "chat", "input": CHAT}, Prompt("chat", OF_CHAT)),
        ("/v1/responses", {"input": TEXT}, Prompt("", OF_TEXT)),
        ("/v1/completions", {"model": "chat", "prompt": TEXT}, Prompt("chat", OF_TEXT)),
        ("/v2/models/ensemble/generate_stream", {"text_input": TEXT}, Prompt("ensemble", OF_TEXT, is_told=True)),
        (
            "/v2/models/code_tensorrt_llm_bls/generate",
            {"text_input": TEXT},
            Prompt("code_tensorrt_llm_bls", OF_TEXT, is_told=True),
        ),
        ("/v2/models/ensemble_graph/generate", {"text_input": TEXT}, Prompt("ensemble_graph", OF_TEXT)),
        ("/v2/models/ensemble/versions/1/infer", {"inputs": []}, Prompt("ensemble", is_told=True)),
        ("/v1/completions", {"model": 7, "prompt": [1, 2], "messages": [3]}, Prompt()),
    ],
)
def test_each_api_has_its_prompt(path: str, body: dict[str, object], prompt: Prompt) -> None:
    assert prompt_of(path, json.dumps(body).encode()) == prompt


@pytest.mark.parametrize(
    "inputs",
    [
        {"text_input": TEXT},
        {"text_input": TEXT, "lora_name": "style", "tenant": "one"},
        {"text_input": TEXT, "lora_task_id": 7},
        {"messages": json.dumps(CHAT, indent=1), "tools": '[{"type": "function"}]'},
        {"messages": "not JSON", "text_input": TEXT},
    ],
)
def test_a_prompt_of_tritons_has_the_numbers_that_its_server_tells(inputs: dict[str, str | int]) -> None:
    tensors = {
        name: np.array([[value]], np.uint64) if isinstance(value, int) else np.array([[value.encode()]], np.object_)
        for name, value in inputs.items()
    }
    told = prefix_of(tensors)
    found = prompt_of("/v2/models/ensemble/generate", json.dumps(inputs | {"max_tokens": 3}).encode())
    assert found.numbers == (() if told is None else tuple(told.numbers))
    assert found.is_told
    nested = prompt_of("/v2/models/ensemble/generate", json.dumps({"parameters": inputs, "max_tokens": 3}).encode())
    assert nested == found, "the server takes inputs from there, too"
    listed = json.dumps({name: [value] for name, value in inputs.items()}).encode()
    assert prompt_of("/v2/models/ensemble/generate", listed) == found


def test_a_conversation_may_have_a_name() -> None:
    body = {"messages": CHAT, "prompt_cache_key": "mine"}
    found = prompt_of("/v1/chat/completions", json.dumps(body).encode())
    assert found.is_session
    assert found.numbers == tuple(numbers_of(GenerateRequest(messages=CHAT, max_tokens=1), session="mine"))


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"7", b"[" * 100_000, b'{"messages": ' * 100_000])
def test_what_cannot_be_read_has_no_prompt(body: bytes) -> None:
    assert prompt_of("/v2/models/ensemble/generate", body) == Prompt("ensemble")
