# SPDX-License-Identifier: Apache-2.0
"""Anthropic's `/v1/messages` of a gateway before a scripted server, by Anthropic's official client."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from key_places import bearer
from kserve_server import DIE, KServeServer, Step, response, story
from running_gateway import Answer, RunningGateway
from simulated_release import TOKENIZER

from clients.anthropic_api.message_events import MessageEvents
from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.tool_calls.reader_choice import Style
from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, GatewaySpec, TierSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel
from serving.text.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message, MessageParam, ToolParam

HERMES = ServedModel("demo", "ensemble", 100, tool_style=Style.HERMES, is_reasoning=True)
PLAIN = ServedModel("demo", "ensemble", 100)
RAIN: "list[MessageParam]" = [{"role": "user", "content": "Will it rain?"}]
WEATHER: "ToolParam" = {
    "name": "weather",
    "description": "of a town",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}},
}
THOUGHT = "<think>\nThe town is Rome.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'


def said(text: str, *, reason: str = "stop", size: int = 5) -> list[Step]:
    """Return the responses of a model that says a text, in pieces that know nothing of marks."""
    parts = [text[begin : begin + size] for begin in range(0, len(text), size)]
    steps = [response(part, num_output_tokens=1, num_input_tokens=7) for part in parts[:-1]]
    return [*steps, response(parts[-1], num_output_tokens=1, num_input_tokens=7, finish_reason=reason, final=True)]


class Site:
    """A client before a gateway before a model that says one text."""

    def __init__(self, *script: Step, model: ServedModel = HERMES) -> None:
        self.server = KServeServer(*script)
        self._model = model

    def __enter__(self) -> "Anthropic":
        from anthropic import Anthropic

        self.server.__enter__()
        self.gateway = RunningGateway(self.server.url, models=(self._model,))
        self.gateway.__enter__()
        self._client = Anthropic(base_url=self.gateway.url.removesuffix("/v1"), api_key="none", max_retries=0)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.gateway.__exit__()
        self.server.__exit__()

    def sent(self) -> dict[str, Any]:
        """Return the inputs of the last request, as text; of several texts, the first one."""
        message = self.server.requests[-1]
        pairs = zip(message.inputs, message.raw_input_contents, strict=True)
        return {tensor.name: data[4:].decode() if tensor.datatype == "BYTES" else data for tensor, data in pairs}


def ask(client: "Anthropic", **fields: Any) -> "Message":
    from anthropic.types import Message

    answer = client.messages.create(**{"model": "demo", "max_tokens": 50, "messages": RAIN, **fields})
    assert isinstance(answer, Message)
    return answer


def test_a_message_is_answered_with_its_text_and_its_tokens() -> None:
    with Site(*said("No, it will not.")) as client:
        answer = ask(client)
    [block] = answer.content
    assert (block.type, block.text) == ("text", "No, it will not.")  # type: ignore[union-attr]
    assert (answer.role, answer.model, answer.type) == ("assistant", "demo", "message")
    assert answer.id.startswith("msg_")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 4)


def test_a_stream_has_anthropic_s_events_in_their_order() -> None:
    with Site(*said(THOUGHT + "Let me see." + CALL + CALL)) as client:
        raw = list(client.messages.create(model="demo", max_tokens=50, messages=RAIN, tools=[WEATHER], stream=True))
    kinds = [event.type for event in raw]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert (kinds.count("content_block_start"), kinds.count("content_block_stop")) == (4, 4)
    open_block: int | None = None
    for event in raw:
        match event.type:
            case "message_start":
                assert event.message.usage.input_tokens == 7
                assert event.message.stop_reason is None
            case "content_block_start":
                assert open_block is None
                open_block = event.index
            case "content_block_delta":
                assert event.index == open_block
            case "content_block_stop":
                assert event.index == open_block
                open_block = None
            case "message_delta":
                assert event.delta.stop_reason == "tool_use"
                assert event.usage.output_tokens > 10
    starts = [event.index for event in raw if event.type == "content_block_start"]
    assert starts == [0, 1, 2, 3]


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_thinking_text_and_calls_are_blocks(*, is_streaming: bool) -> None:
    with Site(*said(THOUGHT + "Let me see." + CALL)) as client:
        if is_streaming:
            with client.messages.stream(model="demo", max_tokens=50, messages=RAIN, tools=[WEATHER]) as stream:
                answer: Message = stream.get_final_message()
        else:
            answer = ask(client, tools=[WEATHER])
    thought, text, call = answer.content
    assert thought.type == "thinking"
    assert thought.thinking == "The town is Rome."
    assert (text.type, text.text) == ("text", "Let me see.")  # type: ignore[union-attr]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"town": "Rome"})
    assert answer.stop_reason == "tool_use"


def test_a_tools_loop_reaches_the_model_in_its_template_s_form() -> None:
    site = Site(*said(THOUGHT + "Let me see." + CALL))
    with site as client:
        answer = ask(
            client, tools=[WEATHER], system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
        )
        [call] = [block for block in answer.content if block.type == "tool_use"]
        rain: Sequence[MessageParam] = [
            *RAIN,
            {"role": "assistant", "content": answer.content},  # as it came, with its thinking
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]},
                    {"type": "tool_result", "tool_use_id": "gone", "content": "no such town", "is_error": True},
                    {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
        site.server.script = tuple(said("No."))
        assert ask(client, messages=rain, tools=[WEATHER]).stop_reason == "end_turn"
    messages = json.loads(site.sent()["messages"])
    assert messages == [
        {"role": "user", "content": "Will it rain?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "The town is Rome.",
            "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": {"town": "Rome"}}}
            ],
        },
        {"role": "tool", "content": "sun", "tool_call_id": call.id},
        {"role": "tool", "content": "Error: no such town", "tool_call_id": "gone"},
        {"role": "user", "content": "So?"},
    ]
    [tool] = json.loads(site.sent()["tools"])
    assert tool == {
        "type": "function",
        "function": {"name": "weather", "description": "of a town", "parameters": WEATHER["input_schema"]},
    }


def test_what_is_asked_reaches_the_server() -> None:
    site = Site(*said("No."), model=PLAIN)
    with site as client:
        ask(
            client,
            system="Be kind.",
            stop_sequences=["END"],
            max_tokens=9,
            metadata={"user_id": "alice"},
            service_tier="auto",
            thinking={"type": "adaptive"},
            cache_control={"type": "ephemeral", "ttl": "1h"},
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
            extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 3},
        )
        sent = site.sent()
        ask(client, extra_body={"temperature": 0})
        greedy = site.sent()
    assert json.loads(sent["messages"])[0] == {"role": "system", "content": "Be kind."}
    assert sent["stop_words"] == "END"
    assert int.from_bytes(sent["max_tokens"], "little") == 9
    assert json.loads(sent["guided_decoding_guide"]) == {"type": "object"}
    assert {"temperature", "top_p", "top_k"} <= sent.keys()
    assert not {"temperature", "top_p", "top_k"} & greedy.keys()
    assert "alice" not in str(sent)


@pytest.mark.parametrize(
    ("reason", "stop_sequences", "stop_reason", "stop_sequence"),
    [
        ("stop", ["END"], "end_turn", None),
        ("length", [], "max_tokens", None),
        ("stop_string", ["END"], "stop_sequence", "END"),
        ("stop_string", ["END", "FIN"], "stop_sequence", None),  # nobody knows the model's tokens
    ],
)
@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_the_reason_of_the_end_is_told(
    reason: str, stop_sequences: list[str], stop_reason: str, stop_sequence: str | None, *, is_streaming: bool
) -> None:
    with Site(*said("No.", reason=reason), model=PLAIN) as client:
        if is_streaming:
            with client.messages.stream(
                model="demo", max_tokens=50, messages=RAIN, stop_sequences=stop_sequences
            ) as stream:
                answer: Message = stream.get_final_message()
        else:
            answer = ask(client, stop_sequences=stop_sequences)
    assert (answer.stop_reason, answer.stop_sequence) == (stop_reason, stop_sequence)


KNOWN = PLAIN._replace(tokenizer=TokenizerSpec(dir=TOKENIZER))


def tokens_said(text: str, *, shown: str, num_ids: int = 2) -> list[Step]:
    """Return the responses of an answer that a stop string ended: the tokens have it, and the text does not."""
    ids = load_tokenizer(TOKENIZER).encode(text, add_special_tokens=False).ids
    parts = [ids[begin : begin + num_ids] for begin in range(0, len(ids), num_ids)]
    steps = [response(shown, num_output_tokens=1, num_input_tokens=7, token_ids=parts[0])] if len(parts) > 1 else []
    steps += [response("", num_output_tokens=1, token_ids=part) for part in parts[1:-1]]
    last = response(
        "" if steps else shown, num_output_tokens=1, num_input_tokens=7, token_ids=parts[-1],
        finish_reason="stop_string", final=True,
    )  # fmt: skip
    return [*steps, last]


@pytest.mark.parametrize(
    ("said_in_all", "shown", "stop_sequences", "ended_by"),
    [
        ("Once upon a time", "Once ", ["time", "upon"], "upon"),
        ("Once upon a time", "Once upon a ", ["END", "time"], "time"),
        ("Once upon a time", "Once ", ["on", "upon"], "upon"),  # both are complete at one character: the longer
        ("Once upon a time", "Once u", ["upon a", "pon"], "pon"),  # the first that is complete
        ("Once upon ünd", "Once upon ", ["ü", "nd"], "ü"),
        ("Once", "On", ["ce", "ce", "x"], "ce"),
    ],
)
@pytest.mark.parametrize("num_ids", [1, 2, 50])
@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_of_several_stop_sequences_the_one_that_ended_the_answer_is_told(
    said_in_all: str, shown: str, stop_sequences: list[str], ended_by: str, num_ids: int, *, is_streaming: bool
) -> None:
    site = Site(*tokens_said(said_in_all, shown=shown, num_ids=num_ids), model=KNOWN)
    with site as client:
        if is_streaming:
            with client.messages.stream(
                model="demo", max_tokens=50, messages=RAIN, stop_sequences=stop_sequences
            ) as stream:
                answer: Message = stream.get_final_message()
        else:
            answer = ask(client, stop_sequences=stop_sequences)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ended_by)
    assert answer.content[0].text == shown  # type: ignore[union-attr]
    assert site.sent()["return_token_ids"] == b"\x01"


def test_tokens_are_asked_for_where_there_are_several_stop_sequences_alone() -> None:
    site = Site(*said("No."), model=KNOWN)
    with site as client:
        ask(client, stop_sequences=["END"])
        assert "return_token_ids" not in site.sent()


def test_a_tokenizer_that_cannot_be_read_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = PLAIN._replace(tokenizer=TokenizerSpec(dir=tmp_path))
    with Site(*tokens_said("Once upon a time", shown="Once "), model=model) as client:
        answers = [ask(client, stop_sequences=["time", "upon"]) for _ in range(2)]
    assert {(answer.stop_reason, answer.stop_sequence) for answer in answers} == {("stop_sequence", None)}
    assert caplog.text.count("which stop string ends an answer is not told") == 1


def test_a_kept_answer_tells_its_stop_sequence_again() -> None:
    from anthropic import Anthropic

    rules = GatewaySpec(answer_cache=AnswerCacheSpec())
    with (
        KServeServer(*tokens_said("Once upon a time", shown="Once ")) as server,
        RunningGateway(server.url, models=(KNOWN,), rules=rules) as gateway,
        Anthropic(base_url=gateway.url.removesuffix("/v1"), api_key="none", max_retries=0) as client,
    ):
        first, second = (ask(client, stop_sequences=["time", "upon"], extra_body={"temperature": 0}) for _ in range(2))
        assert len(server.requests) == 1
    assert first.stop_sequence == second.stop_sequence == "upon"


def test_a_call_that_was_cut_off_is_no_call_with_half_an_input() -> None:
    with Site(*said('<tool_call>\n{"name": "weather", "arguments": {"town": "Ro', reason="length")) as client:
        answer = ask(client, tools=[WEATHER])
    assert answer.stop_reason == "max_tokens"
    assert [block.input for block in answer.content if block.type == "tool_use"] in ([], [{}])


def test_one_call_alone_where_the_caller_wants_one() -> None:
    with Site(*said(CALL + CALL)) as client:
        answer = ask(client, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert len([block for block in answer.content if block.type == "tool_use"]) == 1
        none = ask(client, tools=[WEATHER], tool_choice={"type": "none"})
        assert [block.type for block in none.content] == ["text"]


def test_an_answer_is_held_to_calls_where_the_caller_wants_them() -> None:
    clock: ToolParam = {"name": "clock", "input_schema": {"type": "object"}}
    site = Site(*said(CALL + CALL), model=HERMES._replace(is_reasoning=False))
    with site as client:
        guides = []
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}, None):
            answer = ask(client, tools=[WEATHER, clock], **({} if choice is None else {"tool_choice": choice}))
            assert answer.stop_reason == "tool_use"
            calls = len([block for block in answer.content if block.type == "tool_use"])
            guides.append((calls, site.sent().get("guided_decoding_guide", "")))
    (any_calls, any_guide), (one_call, one_guide), (_, no_guide) = guides
    assert (any_calls, one_call) == (2, 1)
    assert "clock" in any_guide
    assert "weather" in one_guide
    assert "clock" not in one_guide
    assert no_guide == ""


def test_an_engine_that_cannot_guide_says_so_of_the_caller_s_own_field() -> None:
    import anthropic

    refused = "[INVALID_ARG field=guided_decoding_guide_type] guided_decoding_guide_type is not supported"
    fields: dict[str, dict[str, Any]] = {
        "tool_choice": {"tools": [WEATHER], "tool_choice": {"type": "any"}},
        "output_config.format": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    }
    with Site(refused, model=HERMES._replace(is_reasoning=False)) as client:
        for name, asked in fields.items():
            with pytest.raises(anthropic.BadRequestError, match=f"'{name}: "):
                ask(client, **asked)


def test_tokens_that_the_kv_cache_had_are_apart() -> None:
    asked = Asked(endpoint=Endpoint.MESSAGES, requests=(GenerateRequest(max_tokens=1),))
    events = MessageEvents(asked, answer_id="x", model="demo", usage=Usage())
    events.piece(Piece(0, [], "stop"))
    events.end(Usage(100, 5, 64))
    assert events.message["usage"] == {
        "input_tokens": 36,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 64,
        "output_tokens": 5,
    }


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"max_tokens": None}, "max_tokens: object missing required field"),
    "a limit of nothing": ({"max_tokens": 0}, "max_tokens: "),
    "no messages": ({"messages": []}, "messages: "),
    "messages that are text": ({"messages": "Hi"}, "messages: "),
    "a message that is text": ({"messages": ["Hi"]}, "messages[0]: "),
    "a message without content": ({"messages": [{"role": "user"}]}, "messages[0]: object missing"),
    "a role of OpenAI's": ({"messages": [{"role": "system", "content": "Hi"}]}, "messages[0].role: "),
    "the beginning of an answer": (
        {"messages": [*RAIN, {"role": "assistant", "content": "No"}]},
        "messages must end with one of the user",
    ),
    "a picture": (user(IMAGE), "messages[0].content[0]: a block of the type 'image' is not supported"),
    "a document": (user({"type": "document", "source": {}}), "messages[0].content[0]: a block of the type 'document'"),
    "a picture in a result": (
        user({"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}),
        "messages[0].content[0].content[0]: a block of the type 'image'",
    ),
    "a result of a server's tool": (user({"type": "web_search_tool_result"}), "messages[0].content[0]: a block"),
    "a call of the user": (
        user({"type": "tool_use", "id": "x", "name": "weather", "input": {}}),
        "messages[0].content[0]: a block of the type 'tool_use'",
    ),
    "a block without a type": (user({"text": "Hi"}), "messages[0].content[0].type is missing"),
    "a system without a type": ({"system": [{"text": "Hi"}]}, "system[0].type is missing"),
    "a result without a type": (
        user({"type": "tool_result", "tool_use_id": "x", "content": [{"text": "Hi"}]}),
        "messages[0].content[0].content[0].type is missing",
    ),
    "a block with more": (user({"type": "text", "text": "Hi", "more": 1}), "messages[0].content[0]: "),
    "a text with content": (user({"type": "text", "text": "Hi", "content": []}), "messages[0].content[0]: "),
    "blocks within blocks": (
        user(json.loads('{"type":"tool_result","tool_use_id":"x","content":[' * 100 + "]}" * 100)),
        "messages[0].content[0].content[0]: a block of the type 'tool_result'",
    ),
    "citations": (user({"type": "text", "text": "Hi", "citations": [{}]}), "messages[0].content[0].citations: "),
    "a system of pictures": ({"system": [IMAGE]}, "system[0]: a block of the type 'image'"),
    "a warm model": ({"temperature": 1.5}, "temperature: "),
    "a cold model": ({"temperature": -0.1}, "temperature: "),
    "top_p of nothing": ({"top_p": 0}, "top_p: "),
    "top_k below 0": ({"top_k": -1}, "top_k: "),
    "a tool of Anthropic's servers": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type must be custom, got 'web_search_20250305'",
    ),
    "two tools of one name": ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name ('weather') is that of another"),
    "a tool's name": ({"tools": [{**WEATHER, "name": "a b"}]}, "tools: name: "),
    "a tool without a schema": ({"tools": [{"name": "weather"}]}, "tools[0]: object missing"),
    "a tool that is loaded later": ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0]: "),
    "any tool, and a format": (
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "any"},
            "output_config": {"format": {"type": "json_schema", "schema": {}}},
        },
        "tool_choice contradicts output_config.format",
    ),
    "one tool without a name": ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is that of"),
    "any tool with a name": (
        {"tools": [WEATHER], "tool_choice": {"type": "any", "name": "weather"}},
        "tool_choice.name is that of",
    ),
    "one tool that is not offered": (
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "clock"}},
        "tool_choice ('clock') is none of the tools",
    ),
    "a choice of no tools": ({"tool_choice": {"type": "auto"}}, "tool_choice is for tools"),
    "a budget of thoughts": (
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        "thinking is not supported: whether and how long a model thinks is its own",
    ),
    "no thoughts": ({"thinking": {"type": "disabled"}}, "thinking is not supported"),
    "an effort": ({"output_config": {"effort": "low"}}, "output_config: "),
    "a container": ({"container": "x"}, "container is not supported"),
    "servers of tools": ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
    "a place": ({"inference_geo": "us"}, "inference_geo is not supported"),
    "a cache for ever": ({"cache_control": {"type": "ephemeral", "ttl": "1y"}}, "cache_control.ttl: "),
    "a user by name": ({"metadata": {"name": "alice"}}, "metadata: "),
    "what OpenAI has": ({"n": 2}, "n is not supported"),
    "what nobody has": ({"more": 1}, "more is not supported"),
}


def post(gateway: RunningGateway, **fields: Any) -> Answer:
    body = {"model": "demo", "max_tokens": 50, "messages": RAIN, **fields}
    return gateway.call("POST", "/v1/messages", body)


@pytest.fixture(scope="module")
def site() -> Any:
    running = Site(*said("No."))
    with running:
        yield running


@pytest.mark.parametrize(("fields", "said_of_it"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_carried_is_refused_by_name(site: Site, fields: dict[str, Any], said_of_it: str) -> None:
    answer = post(site.gateway, **fields)
    assert answer.status == 400
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["message"].startswith(said_of_it), answer.json["error"]["message"]


def test_what_asks_for_nothing_passes(site: Site) -> None:
    nothing: dict[str, Any] = {
        "tools": None,
        "thinking": None,
        "mcp_servers": [],
        "speed": "standard",
        "metadata": {},
        "system": None,
    }
    assert post(site.gateway, **nothing).status == 200
    blocks = user({"type": "text", "text": "Hi", "citations": None, "cache_control": None})
    assert post(site.gateway, **blocks).status == 200


def test_tokens_are_not_counted_by_guess(site: Site) -> None:
    answer = site.gateway.call("POST", "/v1/messages/count_tokens", {"model": "demo", "messages": RAIN})
    assert answer.status == 404
    assert answer.json["error"]["type"] == "not_found_error"
    assert "tokens are not counted here" in answer.json["error"]["message"]


def test_other_paths_and_methods_are_told_in_anthropic_s_form(site: Site) -> None:
    for method, path, status, kind in (
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
    ):
        answer = site.gateway.call(method, path)
        assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (status, "error", kind)
    openai = site.gateway.call("GET", "/v1/other")
    assert openai.json["error"]["code"] == "not_found"
    broken = site.gateway.call("POST", "/v1/messages", b"{")
    assert broken.json["error"]["type"] == "invalid_request_error"


ERRORS: dict[str, tuple[Step, str, str]] = {
    "no room": (
        "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full",
        "OverloadedError",
        "overloaded_error",
    ),
    "away": ("[UNAVAILABLE reason=engine_died] it died", "ServiceUnavailableError", "api_error"),
    "late": ("[DEADLINE] too late", "GatewayTimeoutError", "timeout_error"),
    "a fault": ("[INTERNAL] a fault", "InternalServerError", "api_error"),
    "a parameter": (
        "[INVALID_ARG field=stop_words] stop_words must not be empty",
        "BadRequestError",
        "invalid_request_error",
    ),
}


@pytest.mark.parametrize(("step", "kind", "told"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_errors_have_the_client_s_own_types(step: Step, kind: str, told: str, *, is_streaming: bool) -> None:
    from anthropic import _exceptions

    with Site(step) as client, pytest.raises(getattr(_exceptions, kind)) as raised:
        list(client.messages.create(model="demo", max_tokens=5, messages=RAIN, stream=is_streaming))
    assert raised.value.type == told
    if told == "overloaded_error":
        assert raised.value.response.headers["retry-after"] == "3"
    if told == "invalid_request_error":
        assert "'stop_sequences: stop_words must not be empty'" in raised.value.message


def test_a_stream_that_breaks_later_ends_with_an_error() -> None:
    import anthropic

    with Site(response("No", num_output_tokens=1, num_input_tokens=7), DIE, model=PLAIN) as client:
        events = iter(client.messages.create(model="demo", max_tokens=5, messages=RAIN, stream=True))
        begun = [next(events).type for _ in range(3)]
        with pytest.raises(anthropic.APIStatusError) as raised:
            next(events)
    assert begun == ["message_start", "content_block_start", "content_block_delta"]
    assert raised.value.type == "api_error"


def test_an_unknown_model_is_not_found(site: Site) -> None:
    answer = post(site.gateway, model="claude")
    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")


def test_a_key_comes_in_either_header_and_is_limited_and_kept_apart(tmp_path: Path) -> None:
    import anthropic
    from anthropic import Anthropic

    rules = GatewaySpec(answer_cache=AnswerCacheSpec(), tiers=(TierSpec(name="auto", small="small", large="demo"),))
    models = (PLAIN, ServedModel("small", "small_ensemble", 100))
    with (
        KServeServer(*story()) as server,
        KeyStore(tmp_path / "keys.sqlite") as store,
        LedgerStore(tmp_path / "ledger.sqlite") as ledger_store,
        Ledger(ledger_store, tmp_path / "journal", load_s=0.05) as ledger,
        RunningGateway(server.url, models=models, keys=store, ledger=ledger, rules=rules) as gateway,
    ):
        key = store.create(NewKey("alice", models=frozenset({"demo"})))
        base = gateway.url.removesuffix("/v1")
        fields: Any = {"max_tokens": 4, "messages": RAIN, "model": "demo", "extra_body": {"temperature": 0}}
        with (
            Anthropic(base_url=base, api_key=key.text, max_retries=0) as by_key,
            Anthropic(base_url=base, auth_token=key.text, max_retries=0) as by_token,
        ):
            first, second = by_key.messages.create(**fields), by_token.messages.with_raw_response.create(**fields)
            assert second.headers["x-trireme-answered-by"] == "exact-cache"
            assert second.parse().content == first.content
            [model] = by_key.models.list().data
            assert (model.id, model.type, model.lifecycle) == ("demo", "model", "active")
            assert by_key.models.retrieve("demo").display_name == "demo"
            with pytest.raises(anthropic.PermissionDeniedError) as refused:
                by_key.messages.create(**{**fields, "model": "small"})
            assert refused.value.type == "permission_error"
        with (
            Anthropic(base_url=base, api_key="tri-none", max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError) as unknown,
        ):
            stranger.messages.create(**fields)
        assert unknown.value.type == "authentication_error"
        assert "tri-none" not in str(unknown.value)
        # OpenAI's own paths take a bearer alone.
        body = {"messages": RAIN, "model": "demo"}
        assert gateway.call("POST", "/v1/chat/completions", body, **{"x-api-key": key.text}).status == 401
        limited = store.create(
            NewKey("bob", tenant="b")._replace(limits=NewKey("x").limits._replace(requests_per_minute=1))
        )
        answers = [
            gateway.call(
                "POST",
                "/v1/messages",
                {"max_tokens": 4, "messages": RAIN, "model": "auto"},
                Authorization=bearer(limited),
            )
            for _ in range(2)
        ]
        assert [answer.status for answer in answers] == [200, 429]
        assert answers[0].json["model"] == "small"
        assert answers[1].json["error"]["type"] == "rate_limit_error"
        assert "x-ratelimit-limit-requests" in answers[1].headers
    with LedgerStore(tmp_path / "ledger.sqlite") as ledger_store:
        rows = ledger_store.usage(["endpoint", "finish"], since_day=0, until_day=10**6)
    assert {row.group[0] for row in rows} == {"/v1/messages"}
