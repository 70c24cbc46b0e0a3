# SPDX-License-Identifier: Apache-2.0
"""Requests that other servers' tests send to OpenAI's API, as data: what they ask, and what is answered here.

Sources, read on 2026-11-27: `python/openai/tests` of triton-inference-server/server (test_chat_completions,
test_completions, test_openai_client, test_tool_calling), and `tests/entrypoints/openai` of vllm-project/vllm
(test_chat, test_completion; `vllm_requests` has the rest). Requests of models that are not text models, of LoRA
adapters by model name, and of servers that are started in another way are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

TRITON, VLLM = "Triton's OpenAI frontend", "vLLM"
SAME = "as there"
STATUS = "refused as there, with OpenAI's status: 400 for 422"
ANSWERED = "answered, and refused there"
REFUSED = "refused by name, and answered there"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "You answer in one sentence."}
QUESTION = {"role": "user", "content": "What is the capital of Italy?"}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Case(NamedTuple):
    """A request, or several that belong together.

    Attributes:
        source: server whose tests send it.
        what: that it asks about, for a table.
        bodies: of the requests; `model` and the prompt are added to those that are objects, where they are not there.
        outcome: SAME, STATUS, ANSWERED or REFUSED.
        param: that a refusal names; "": any.
        holds: of the answers, what must be true; a stream is an object with its `events`.
        status: of a refusal.
        headers: of the requests.
        has_tools: the model is one that tools are offered to.
    """

    source: str
    what: str
    path: str
    bodies: Sequence[Any]
    outcome: str = SAME
    param: str = ""
    holds: Callable[[list[Any]], bool] = lambda _: True
    status: int = 400
    headers: Mapping[str, str] = MappingProxyType({})
    has_tools: bool = False

    @property
    def is_answered(self) -> bool:
        """Return whether the answers are texts."""
        return self.outcome in {SAME, ANSWERED} and not self.param


def texts(answers: list[Any]) -> list[str]:
    """Return the first text of each answer."""
    choices = [answer["choices"][0] for answer in answers]
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]


def _tells_log_probs(answers: list[Any]) -> bool:
    told = answers[0]["choices"][0]["logprobs"]
    return all(value <= 0 for value in told["token_logprobs"]) if "tokens" in told else bool(told["content"])


def _counts(answers: list[Any]) -> list[int]:
    return [answer["usage"]["completion_tokens"] for answer in answers]


def _equal_then_other(answers: list[Any]) -> bool:
    first, second, third = texts(answers)
    return first == second != third


def _usage(answers: list[Any]) -> bool:
    [usage] = [answer["usage"] for answer in answers]
    prompt, completion = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    return min(prompt, completion) > 0 and int(usage["total_tokens"]) == prompt + completion


def _role(answers: list[Any]) -> bool:
    return all(answer["choices"][0]["message"]["role"] == "assistant" for answer in answers) and all(texts(answers))


_VALID: dict[str, tuple[dict[str, Any], ...]] = {
    "both": (
        {"temperature": 0.7}, {"max_tokens": 10}, {"top_p": 0.9}, {"frequency_penalty": 0.5},
        {"presence_penalty": 0.2}, {"n": 1}, {"min_tokens": 16, "max_tokens": 16}, {"ignore_eos": True},
    ),
    CHAT: ({"stop": "."}, {"stop": []}, {"stop": [".", ","]}, {"max_completion_tokens": 10}),
    TEXT: ({"best_of": 1},),
}  # fmt: skip
_INVALID: tuple[dict[str, Any], ...] = (
    {"temperature": 2.1}, {"temperature": -0.1}, {"max_tokens": -1}, {"top_p": 1.1}, {"frequency_penalty": 3},
    {"frequency_penalty": -3}, {"presence_penalty": 2.1}, {"presence_penalty": -2.1}, {"min_tokens": -1},
    {"ignore_eos": 123},
)  # fmt: skip
_LONG = {"max_tokens": 48, "ignore_eos": True}


def _of_sampling() -> list[Case]:
    cases = []
    for path in (CHAT, TEXT):
        kind = "chat" if path == CHAT else "text"
        for body in (*_VALID["both"], *_VALID[path]):
            [name] = [name for name in body if name != "max_tokens" or len(body) == 1]
            cases.append(Case(TRITON, f"{kind}: `{name}` {body[name]!r}", path, [body]))
        for body in _INVALID:
            [(name, value)] = body.items()
            cases.append(Case(TRITON, f"{kind}: `{name}` {value!r}", path, [body], STATUS, param=name))
        cases += [
            Case(TRITON, "chat: `logprobs`", path, [{"logprobs": True}], ANSWERED, holds=_tells_log_probs)
            if path == CHAT
            else Case(TRITON, "text: `logprobs`", path, [{"logprobs": 5}], SAME, param="logprobs"),
            Case(TRITON, f"{kind}: `logit_bias`", path, [{"logit_bias": {"0": 0}}], SAME, param="logit_bias"),
            Case(TRITON, f"{kind}: one token, one token, many", path,
                 [{"max_tokens": 1}, {"max_tokens": 1}, {"max_tokens": 30, "ignore_eos": True}],
                 holds=lambda answers: _counts(answers)[:2] == [1, 1] and _counts(answers)[2] > 1),
            Case(TRITON, f"{kind}: temperature 0 twice", path, [{"temperature": 0.0, **_LONG}] * 2,
                 holds=lambda answers: len(set(texts(answers))) == 1),
            Case(TRITON, f"{kind}: temperature 1 twice", path, [{"temperature": 1.0, **_LONG}] * 2,
                 holds=lambda answers: len(set(texts(answers))) > 1),
            Case(TRITON, f"{kind}: seed 1, 1, 2", path, [{"seed": seed, **_LONG} for seed in (1, 1, 2)],
                 holds=_equal_then_other),
            Case(TRITON, f"{kind}: `n` 2", path, [{"n": 2}], ANSWERED,
                 holds=lambda answers: len(answers[0]["choices"]) == 2),
            Case(TRITON, f"{kind}: usage", path, [{}], holds=_usage),
        ]  # fmt: skip
    return cases


_OF_CHATS = [
    Case(TRITON, "chat: defaults", CHAT, [{}], holds=_role),
    Case(TRITON, "chat: a system's message", CHAT, [{"messages": [SYSTEM, QUESTION]}], holds=_role),
    Case(TRITON, "chat: a system's message alone", CHAT, [{"messages": [SYSTEM]}]),
    Case(TRITON, "chat: parts of a message", CHAT,
         [{"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}]}], holds=_role),
    Case(TRITON, "chat: `max_tokens` and `max_completion_tokens` that differ (OpenAI refuses both at once)", CHAT,
         [{"max_tokens": 50, "max_completion_tokens": 5}], REFUSED, param="max_tokens"),
    Case(TRITON, "chat: `max_tokens`, and `max_completion_tokens` null", CHAT,
         [{"max_tokens": 3, "max_completion_tokens": None}], holds=lambda answers: _counts(answers)[0] <= 3),
    Case(TRITON, "chat: `max_completion_tokens` -1", CHAT, [{"max_completion_tokens": -1}], STATUS,
         param="max_completion_tokens"),
    Case(TRITON, "chat: no messages", CHAT, [{"messages": []}], STATUS, param="messages"),
    Case(TRITON, "chat: a message that is empty", CHAT, [{"messages": [{}]}], STATUS, param="messages"),
    Case(TRITON, "chat: `stream` false", CHAT, [{"stream": False}], holds=_role),
    Case(TRITON, "chat: a tool by its name", CHAT,
         [{"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}], REFUSED,
         param="tools"),  # its chat template knows none
    Case(VLLM, "chat: `logprobs` false", CHAT, [{"logprobs": False}],
         holds=lambda answers: answers[0]["choices"][0]["logprobs"] is None),
    Case(VLLM, "chat: `top_logprobs` 5", CHAT, [{"logprobs": True, "top_logprobs": 5}], REFUSED,
         param="top_logprobs"),
    Case(VLLM, "chat: `logprobs` true", CHAT, [{"logprobs": True}], holds=_tells_log_probs),
    Case(VLLM, "chat: `top_logprobs` 21", CHAT, [{"logprobs": True, "top_logprobs": 21}], SAME, param="top_logprobs"),
    Case(VLLM, "chat: `prompt_logprobs` 1", CHAT, [{"prompt_logprobs": 1}], REFUSED, param="prompt_logprobs"),
    Case(VLLM, "chat: `stream_options` without a stream", CHAT, [{"stream_options": {"include_usage": True}}], SAME,
         param="stream_options"),
    Case(VLLM, "chat: usage in each event", CHAT,
         [{"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}], REFUSED,
         param="stream_options"),
    Case(VLLM, "chat: `structured_outputs`", CHAT, [{"structured_outputs": {"choice": ["a", "b"]}}], REFUSED,
         param="structured_outputs"),
    Case(VLLM, "chat: a JSON object", CHAT, [{"response_format": {"type": "json_object"}, "max_tokens": 60}],
         holds=lambda answers: texts(answers)[0].lstrip()[:1] == "{"),
]  # fmt: skip
_OF_TEXTS = [
    Case(TRITON, "text: defaults", TEXT, [{}], holds=lambda answers: all(texts(answers))),
    Case(TRITON, "text: nothing at all", TEXT, [{"prompt": None, "model": None}], STATUS, param="prompt"),
    Case(TRITON, "text: no model", TEXT, [{"model": None}], ANSWERED),
    Case(TRITON, "text: no prompt", TEXT, [{"prompt": None}], STATUS, param="prompt"),
    Case(TRITON, "text: an empty prompt", TEXT, [{"prompt": ""}], SAME, param="prompt"),
    Case(TRITON, "text: `best_of` 2", TEXT, [{"best_of": 2}], SAME, param="best_of"),
    Case(TRITON, "text: `n` 2, `best_of` 1", TEXT, [{"n": 2, "best_of": 1}], ANSWERED,
         holds=lambda answers: len(answers[0]["choices"]) == 2),
    Case(TRITON, "text: `echo`", TEXT, [{"echo": True}, {"echo": False}],
         holds=lambda answers: [text.startswith("What is") for text in texts(answers)] == [True, False]),
    Case(VLLM, "text: five tokens", TEXT, [{"max_tokens": 5, "temperature": 0.0, "ignore_eos": True}],
         holds=lambda answers: (_counts(answers), answers[0]["choices"][0]["finish_reason"]) == ([5], "length")),
    Case(VLLM, "text: token ids", TEXT, [{"prompt": [0, 0, 0]}], REFUSED, param="prompt"),
    Case(VLLM, "text: two prompts", TEXT, [{"prompt": ["Once upon a time", "My name is"]}],
         holds=lambda answers: [choice["index"] for choice in answers[0]["choices"]] == [0, 1]),
    Case(VLLM, "text: no prompts", TEXT, [{"prompt": []}], SAME, param="prompt"),
    Case(VLLM, "text: three answers that differ", TEXT, [{"n": 3, "temperature": 1.0, "seed": 42, **_LONG}],
         holds=lambda answers: len({choice["text"] for choice in answers[0]["choices"]}) == 3),
    Case(VLLM, "text: `truncate_prompt_tokens`", TEXT, [{"truncate_prompt_tokens": 4}], REFUSED,
         param="truncate_prompt_tokens"),
    Case(VLLM, "text: `logprobs` 5", TEXT, [{"logprobs": 5}], REFUSED, param="logprobs"),
    Case(VLLM, "text: `logprobs` 0", TEXT, [{"logprobs": 0}], holds=_tells_log_probs),
    Case(VLLM, "text: `stream_options` without a stream", TEXT, [{"stream_options": {"include_usage": None}}], SAME,
         param="stream_options"),
]  # fmt: skip
CASES = (*_OF_CHATS, *_OF_TEXTS, *_of_sampling())
