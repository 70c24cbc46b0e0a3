# SPDX-License-Identifier: Apache-2.0
"""Requests that vLLM's tests of its OpenAI endpoints send, as data: what they ask, and what is answered here.

Source, read on 2026-11-28: `tests/entrypoints/openai` of vllm-project/vllm, the files `chat_completion/test_chat`,
`test_chat_logit_bias_validation`, `test_completion_with_function_calling`, `test_non_object_body_validation` and
`test_tool_choice_null`, `completion/test_completion` and `test_prompt_validation`, `basic/test_basic`,
`models/test_models`, and `responses/test_basic`, `test_simple` and `test_structured_output`. Left out is what no other
server has (`structured_outputs`, beams, embeddings of prompts, `/invocations`), and models that see, hear or reason.
"""

import json
from collections.abc import Sequence
from typing import Any

from openai_requests import ANSWERED, CHAT, QUESTION, REFUSED, SAME, TEXT, VLLM, WEATHER, Case, texts

MODELS, RESPONSES = "/v1/models", "/v1/responses"
_GREEDY = {"temperature": 0.0}
_FEW = {"max_completion_tokens": 10, **_GREEDY}
_LONG = {"max_tokens": 50, "temperature": 1.0, "seed": 42, "ignore_eos": True}
_ALL = {"stream": True}
_FORECAST: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Berlin"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
        },
    },
}
_NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
_NAMED = {"type": "function", "function": {"name": "forecast"}}


def _events(answer: Any) -> list[Any]:
    """Return the events of a stream."""
    return list(answer["events"])


def _choices(answer: Any) -> list[Any]:
    return [choice for event in _events(answer) for choice in event["choices"]]


def _streamed(answer: Any, index: int = 0) -> str:
    """Return the text of one choice of a stream."""
    mine = [choice for choice in _choices(answer) if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in mine)


def _reasons(answer: Any) -> list[str]:
    return [choice["finish_reason"] for choice in _choices(answer) if choice["finish_reason"]]


def _streams_the_same(answers: list[Any]) -> bool:
    whole, stream = answers
    [reason] = _reasons(stream)
    return _streamed(stream) == texts([whole])[0] and reason == whole["choices"][0]["finish_reason"]


def _has_no_usage(answers: list[Any]) -> bool:
    return all(event.get("usage") is None for answer in answers for event in _events(answer))


def _ends_with_usage(answers: list[Any]) -> bool:
    [answer] = answers
    *before, last = _events(answer)
    usage = last["usage"]
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    return last["choices"] == [] and usage["total_tokens"] == total > 0 and _has_no_usage([{"events": before}])


def _differ(found: Sequence[str]) -> bool:
    return len(set(found)) == len(found) and all(found)


def _numbered(answers: list[Any], num: int) -> bool:
    choices = answers[0]["choices"]
    return [choice["index"] for choice in choices] == list(range(num)) and all(
        choice["message"]["content"] for choice in choices
    )


def _in_turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(contents)]


_OF_CHATS = [
    Case(VLLM, "chat: `top_logprobs` 0", CHAT, [{"logprobs": True, "top_logprobs": 0, **_FEW}],
         holds=lambda answers: answers[0]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []),
    Case(VLLM, "chat: `top_logprobs` 21 of a stream, 30", CHAT,
         [{"logprobs": True, "top_logprobs": 21, **_ALL}, {"logprobs": True, "top_logprobs": 30}], SAME,
         param="top_logprobs"),
    Case(VLLM, "chat: `prompt_logprobs` 0", CHAT, [{"prompt_logprobs": 0}], REFUSED, param="prompt_logprobs"),
    Case(VLLM, "chat: `prompt_logprobs` -1", CHAT, [{"prompt_logprobs": -1}], SAME, param="prompt_logprobs"),
    Case(VLLM, "chat: several turns", CHAT,
         [{"messages": [{"role": "system", "content": "You are a helpful assistant."},
                        *_in_turns("Who won?", "The Dodgers.", "Where was it played?")], **_FEW}],
         holds=lambda answers: bool(answers[0]["id"]) and len(answers[0]["choices"]) == 1),
    Case(VLLM, "chat: five tokens", CHAT, [{"max_completion_tokens": 5, "ignore_eos": True}],
         holds=lambda answers: (answers[0]["usage"]["completion_tokens"], answers[0]["choices"][0]["finish_reason"])
         == (5, "length")),
    Case(VLLM, "chat: a stream has the text of the whole", CHAT, [_FEW, {**_FEW, **_ALL}], holds=_streams_the_same),
    Case(VLLM, "chat: a stream without usage", CHAT,
         [{**_FEW, **_ALL, "stream_options": options} for options in ({"include_usage": False}, {})],
         holds=_has_no_usage),
    Case(VLLM, "chat: a stream with usage, and not in each event", CHAT,
         [{**_FEW, **_ALL, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}],
         holds=_ends_with_usage),
    Case(VLLM, "chat: `include_usage` null without a stream", CHAT, [{"stream_options": {"include_usage": None}}], SAME,
         param="stream_options"),
    Case(VLLM, "chat: a JSON schema", CHAT,
         [{"response_format": {"type": "json_schema", "json_schema": {"name": "foo", "schema": {
             "type": "object", "properties": {"result": {"type": "integer"}}}}}, "max_tokens": 60}],
         holds=lambda answers: texts(answers)[0][:1] == "{"),
    Case(VLLM, "chat: the format text", CHAT, [{"response_format": {"type": "text"}, **_FEW}],
         holds=lambda answers: all(texts(answers))),
    Case(VLLM, "chat: an unknown field of a message", CHAT, [{"messages": [{**QUESTION, "extra_field": "0"}]}], REFUSED,
         param="messages"),
    Case(VLLM, "chat: parts of a message say what the text says", CHAT,
         [{"messages": [QUESTION], "seed": 0, **_GREEDY},
          {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}], "seed": 0,
           **_GREEDY}],
         holds=lambda answers: len(set(texts(answers))) == 1),
    Case(VLLM, "chat: a role of one's own", CHAT, [{"messages": [{"role": "my-custom-role", "content": "Hi"}]}],
         REFUSED, param="messages"),
    Case(VLLM, "chat: `seed` beyond 64 bits", CHAT, [{"seed": -(2**63) - 1}, {"seed": 2**63}], SAME, param="seed"),
    Case(VLLM, "chat: `n` 3", CHAT, [{"n": 3, "temperature": 0.7, "max_completion_tokens": 20}],
         holds=lambda answers: _numbered(answers, 3)),
    Case(VLLM, "chat: `n` 2 of a stream", CHAT, [{"n": 2, "temperature": 0.7, "max_completion_tokens": 15, **_ALL}],
         holds=lambda answers: all(_streamed(answers[0], index) for index in (0, 1))
         and len(_reasons(answers[0])) == 2),
    Case(VLLM, "chat: `n` 2 with a seed", CHAT, [{"n": 2, "temperature": 0.8, "seed": 42, "max_completion_tokens": 10}],
         holds=lambda answers: _numbered(answers, 2)),
    Case(VLLM, "chat: `logit_bias` of a token", CHAT, [{"logit_bias": {"7": 1.0}}], REFUSED, param="logit_bias"),
    Case(VLLM, "chat: `logit_bias` of no token, of no number", CHAT,
         [{"logit_bias": bias} for bias in ({"99999999": 1.0}, {"not_a_token_id": 50}, {"1": "not_a_number"})], SAME,
         param="logit_bias"),
    Case(VLLM, "chat: a body that is no object", CHAT,
         [b"this is not valid json{{{", ["not", "an", "object"], 42, None], SAME, param="None"),
    Case(VLLM, "chat: a body of the type of a form", CHAT, [_FEW], ANSWERED,
         headers={"Content-Type": "application/x-www-form-urlencoded"}),
    Case(VLLM, "chat: a model that is not there", CHAT, [{"model": "nobody"}], SAME, param="model", status=404),
]  # fmt: skip
_OF_TEXTS = [
    Case(VLLM, "text: a stream has the text of the whole", TEXT,
         [{"max_tokens": 5, "ignore_eos": True, **_GREEDY}, {"max_tokens": 5, "ignore_eos": True, **_GREEDY, **_ALL}],
         holds=_streams_the_same),
    Case(VLLM, "text: three answers with `logprobs` 0", TEXT, [{**_LONG, "n": 3, "logprobs": 0}],
         holds=lambda answers: _differ([choice["text"] for choice in answers[0]["choices"]])
         and all(choice["logprobs"]["tokens"] for choice in answers[0]["choices"])),
    Case(VLLM, "text: three answers of a stream", TEXT, [{**_LONG, "n": 3, **_ALL}],
         holds=lambda answers: _differ([_streamed(answers[0], index) for index in range(3)])
         and len(_reasons(answers[0])) == 3),
    Case(VLLM, "text: a stream without usage", TEXT,
         [{"max_tokens": 5, **_ALL, "stream_options": options}
          for options in ({"include_usage": False, "continuous_usage_stats": False}, {})], holds=_has_no_usage),
    Case(VLLM, "text: a stream with usage, and not in each event", TEXT,
         [{"max_tokens": 5, **_ALL, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}],
         holds=_ends_with_usage),
    Case(VLLM, "text: usage in each event", TEXT,
         [{**_ALL, "stream_options": {"include_usage": usage, "continuous_usage_stats": True}}
          for usage in (True, False)], REFUSED, param="stream_options"),
    Case(VLLM, "text: other `stream_options` without a stream", TEXT,
         [{"stream_options": options} for options in ({"include_usage": True}, {"continuous_usage_stats": None},
                                                      {"continuous_usage_stats": True})], SAME,
         param="stream_options"),
    Case(VLLM, "text: one prompt twice", TEXT, [{"prompt": ["Once upon a time"] * 2, "max_tokens": 5, **_GREEDY}],
         holds=lambda answers: len({choice["text"] for choice in answers[0]["choices"]}) == 1
         and len(answers[0]["choices"]) == 2),
    Case(VLLM, "text: one prompt twice, of a stream", TEXT,
         [{"prompt": ["Once upon a time"] * 2, "max_tokens": 5, **_GREEDY, **_ALL}],
         holds=lambda answers: all(len(event["choices"]) == 1 for event in _events(answers[0]))
         and _streamed(answers[0], 0) == _streamed(answers[0], 1) != ""),
    Case(VLLM, "text: `echo` with `logprobs` 1, 0", TEXT,
         [{"echo": True, "logprobs": number} for number in (1, 0)], REFUSED, param="logprobs"),
    Case(VLLM, "text: `logprobs` 21, 30 of a stream", TEXT, [{"logprobs": 21}, {"logprobs": 30, **_ALL}], SAME,
         param="logprobs"),
    Case(VLLM, "text: `logprobs` null", TEXT, [{"logprobs": None}],
         holds=lambda answers: answers[0]["choices"][0]["logprobs"] is None),
    Case(VLLM, "text: `prompt_logprobs` 0, 1", TEXT, [{"prompt_logprobs": number} for number in (0, 1)], REFUSED,
         param="prompt_logprobs"),
    Case(VLLM, "text: `prompt_logprobs` -1", TEXT, [{"prompt_logprobs": -1}], SAME, param="prompt_logprobs"),
    Case(VLLM, "text: lists of token ids", TEXT, [{"prompt": [[0, 0, 0], [0, 0, 0]]}], REFUSED, param="prompt"),
    Case(VLLM, "text: an id of no token", TEXT, [{"prompt": [999999]}], SAME, param="prompt"),
    Case(VLLM, "text: no prompt, and no `prompt_embeds`", TEXT, [{"prompt": None, "prompt_embeds": []}], SAME,
         param="prompt"),
]  # fmt: skip
_TOOLS = {"tools": [_FORECAST, _NOW], "max_completion_tokens": 100, **_GREEDY}


def _calls(answer: Any) -> list[tuple[str, Any]]:
    """Return the calls of a whole answer, or of a stream, by name with their arguments."""
    if "events" not in answer:
        calls = [call["function"] for call in answer["choices"][0]["message"].get("tool_calls") or []]
    else:
        calls = []
        for choice in _choices(answer):
            for call in choice["delta"].get("tool_calls") or []:
                if call["index"] == len(calls):
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"].get("arguments") or ""
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def _forecast(answers: list[Any]) -> bool:
    """Return whether each answer is one call with arguments that fit, and nothing else."""
    found = [_calls(answer) for answer in answers]
    is_silent = not (answers[0]["choices"][0]["message"]["content"] or _streamed(answers[1]))
    return is_silent and all(
        name == "forecast" and arguments["city"] in ("Rome", "Berlin") and 1 <= arguments["days"] <= 7
        for [(name, arguments)] in found
    )


_OF_TOOLS = [
    Case(VLLM, "tools: `tool_choice` of a function, whole and streamed", CHAT,
         [{**_TOOLS, "tool_choice": _NAMED, **more} for more in ({}, _ALL)], holds=_forecast, has_tools=True),
    Case(VLLM, "tools: `tool_choice` required, whole and streamed", CHAT,
         [{**_TOOLS, "tools": [_FORECAST], "tool_choice": "required", "parallel_tool_calls": False, **more}
          for more in ({}, _ALL)], holds=_forecast, has_tools=True),
    Case(VLLM, "tools: `tool_choice` auto, null and none at all", CHAT,
         [{**_TOOLS, **choice} for choice in ({"tool_choice": "auto"}, {"tool_choice": None}, {})],
         holds=lambda answers: len(set(map(str, texts(answers)))) == 1, has_tools=True),
    Case(VLLM, "tools: one token of a call", CHAT,
         [{**_TOOLS, "tool_choice": choice, "max_completion_tokens": 1} for choice in ("required", _NAMED)],
         holds=lambda answers: {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"},
         has_tools=True),
    Case(VLLM, "tools: the arguments \"{}\" and \"\" of a call that has none", CHAT,
         [{"messages": [QUESTION,
                        {"role": "assistant", "content": "", "tool_calls": [
                            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": arguments}}]},
                        {"role": "tool", "tool_call_id": "call_1", "content": "2026-11-28"}],
           "tools": [_NOW], **_FEW} for arguments in ("{}", "")],
         holds=lambda answers: len(set(texts(answers))) == 1, has_tools=True),
    Case(VLLM, "tools: a function that is not there, a choice that is none", CHAT,
         [{"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "undefined"}}},
          {"tools": [WEATHER], "tool_choice": {}}, {"tools": [WEATHER], "tool_choice": "bogus"}], SAME,
         param="tool_choice"),
    Case(VLLM, "tools: a choice without tools", CHAT, [{"tool_choice": _NAMED}, {"tool_choice": "auto"}], SAME,
         param="tool_choice"),
]  # fmt: skip
_OF_MODELS = [
    Case(VLLM, "models: all", MODELS, [None],
         holds=lambda answers: [model["id"] for model in answers[0]["data"]] == ["openvino"]),
    Case(VLLM, "models: one", f"{MODELS}/openvino", [None], holds=lambda answers: answers[0]["id"] == "openvino"),
    Case(VLLM, "models: one that is not there", f"{MODELS}/this-model-does-not-exist", [None], SAME, param="model",
         status=404),
]  # fmt: skip


def _said(answer: Any) -> str:
    """Return the text of a response."""
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def _completed(answers: list[Any]) -> bool:
    return all(answer["status"] == "completed" and _said(answer) for answer in answers)


def _tells_all(answers: list[Any]) -> bool:
    events = _events(answers[0])
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]
    kinds = (events[0]["type"], last["type"], last["response"]["status"])
    return kinds == ("response.created", "response.completed", "completed") and deltas == _said(last["response"]) != ""


def _item(role: str, text: str, **more: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more}


def _history(**more: str) -> list[dict[str, Any]]:
    """Return a conversation as OpenAI's clients send it back. Args: `more`: of what the model said."""
    reasoning: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": None, **more}
    return [
        _item("user", "You are a concise assistant."),
        _item("assistant", "Acknowledged.", **more),
        reasoning,
        _item("user", str(QUESTION["content"])),
    ]


_ASKED = {"input": QUESTION["content"], "max_output_tokens": 60, **_GREEDY}
_EVENT = {
    "type": "object",
    "properties": {"name": {"enum": ["science fair"]}, "participants": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "participants"],
    "additionalProperties": False,
}
_OF_RESPONSES = [
    Case(VLLM, "response: a text", RESPONSES, [_ASKED], holds=_completed),
    Case(VLLM, "response: instructions", RESPONSES, [{**_ASKED, "instructions": "Answer in one sentence."}],
         holds=_completed),
    Case(VLLM, "response: a chat", RESPONSES,
         [{**_ASKED, "input": [{"role": "system", "content": "Be kind."}, *_in_turns("Hi", "Hi.", "Who are you?")]}],
         holds=lambda answers: bool(_said(answers[0]))),
    Case(VLLM, "response: a part of type input_text", RESPONSES,
         [{**_ASKED, "input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION["content"]}]}]}],
         holds=_completed),
    Case(VLLM, "response: a stream tells the whole", RESPONSES, [{**_ASKED, **_ALL, "tools": [], "background": False}],
         holds=_tells_all),
    Case(VLLM, "response: `include` of log probabilities", RESPONSES,
         [{**_ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 5}], REFUSED, param="include"),
    Case(VLLM, "response: `reasoning` of an effort", RESPONSES,
         [{**_ASKED, "reasoning": {"effort": effort}} for effort in ("none", "low")], REFUSED, param="reasoning"),
    Case(VLLM, "response: a conversation with ids and states, and without", RESPONSES,
         [{**_ASKED, "input": _history(id="item_1", status="completed")}, {**_ASKED, "input": _history()}],
         holds=lambda answers: len({_said(answer) for answer in answers}) == 1),
    Case(VLLM, "response: three tokens", RESPONSES, [{**_ASKED, "max_output_tokens": 3}],
         holds=lambda answers: (answers[0]["status"], answers[0]["incomplete_details"])
         == ("incomplete", {"reason": "max_output_tokens"})),
    Case(VLLM, "response: `top_k`, `repetition_penalty`, `seed`", RESPONSES,
         [{**_ASKED, name: value} for name, value in (("top_k", 40), ("repetition_penalty", 1.2), ("seed", 42))],
         REFUSED),
    Case(VLLM, "response: a JSON schema", RESPONSES,
         [{**_ASKED, "text": {"format": {"type": "json_schema", "name": "calendar_event", "schema": _EVENT,
                                         "description": "A calendar event.", "strict": True}}}],
         holds=lambda answers: json.loads(_said(answers[0]))["name"] == "science fair"),
]  # fmt: skip
_FLAT: dict[str, Any] = {"type": "function", "strict": True, **_FORECAST["function"]}
_CALL_FLAT: dict[str, Any] = {
    "tools": [_FLAT], "tool_choice": {"type": "function", "name": "forecast"},
    "input": [{"role": "user", "content": "What will the weather be in Berlin?"}], **_GREEDY,
}  # fmt: skip
_BEGINS = {
    "response.completed": "response.created",
    "response.output_item.done": "response.output_item.added",
    "response.output_text.done": "response.output_text.delta",
    "response.content_part.done": "response.content_part.added",
    "response.function_call_arguments.done": "response.function_call_arguments.delta",
}


def _ends_what_it_begins(answers: list[Any]) -> bool:
    """Return whether what begins in the events of each stream ends, the last first."""
    for answer in answers:
        begun: list[str] = []
        for event in _events(answer):
            kind = event["type"]
            if kind in _BEGINS:
                if not begun or begun.pop() != _BEGINS[kind]:
                    return False
            elif kind in _BEGINS.values() and (not kind.endswith("delta") or begun[-1] != kind):
                begun.append(kind)
        if begun:
            return False
    return True


def _called(answers: list[Any]) -> bool:
    """Return whether the deltas of a call are its arguments, and these fit."""
    events = _events(answers[0])
    [item] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    arguments = json.loads(item["arguments"])
    is_whole = item["name"] == "forecast" and "".join(deltas) == item["arguments"]
    return is_whole and arguments["city"] in ("Rome", "Berlin")


_OF_CALLS = [
    Case(VLLM, "response: a function by its name, and required", RESPONSES,
         [_CALL_FLAT, {**_CALL_FLAT, "tool_choice": "required", "parallel_tool_calls": False}],
         holds=lambda answers: all(
             [item["type"] for item in answer["output"]] == ["function_call"] for answer in answers), has_tools=True),
    Case(VLLM, "response: the result of a call", RESPONSES,
         [{"input": [*_CALL_FLAT["input"],
                     {"type": "function_call", "call_id": "call_1", "name": "forecast", "arguments": "{}"},
                     {"type": "function_call_output", "call_id": "call_1", "output": "20 degrees"}], **_GREEDY,
           "max_output_tokens": 60}], holds=lambda answers: bool(_said(answers[0])), has_tools=True),
    Case(VLLM, "response: a call that streams", RESPONSES, [{**_CALL_FLAT, **_ALL}], holds=_called, has_tools=True),
    Case(VLLM, "response: the events of a call, and of a text", RESPONSES,
         [{**_CALL_FLAT, **_ALL}, {**_ASKED, **_ALL}], holds=_ends_what_it_begins, has_tools=True),
    Case(VLLM, "response: a call that is cut off", RESPONSES, [{**_CALL_FLAT, "max_output_tokens": 2}],
         holds=lambda answers: answers[0]["incomplete_details"] == {"reason": "max_output_tokens"}, has_tools=True),
]  # fmt: skip
VLLM_CASES = (*_OF_CHATS, *_OF_TEXTS, *_OF_TOOLS, *_OF_MODELS, *_OF_RESPONSES, *_OF_CALLS)
