# SPDX-License-Identifier: Apache-2.0
"""LangChain's ChatOpenAI as its users have it: chats, streams, tools, structured output."""

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from official_client import CALL, ROME, City
from scenarios import Site, run_all

QUESTION = "What is the capital of Italy?"
SUNNY = "Sunny in Rome."
Town = Literal["Rome", "Paris", "Lima"]
CALL_OF_WEATHER = CALL.replace("Weather", "weather")


def weather(town: Town) -> str:
    """Tell the weather of a town."""
    return f"Sunny in {town}."


def chat(site: Site, model: str, **options: Any) -> Any:
    return ChatOpenAI(base_url=site.url, api_key=site.key, model=model, temperature=0, max_retries=0, **options)


def a_chat_is_answered(site: Site) -> None:
    answer = chat(site, "demo").invoke(QUESTION)
    assert answer.content.strip() == ROME
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 0
    said = chat(site, "demo", logprobs=True).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in said).strip() == ROME


def a_chat_streams(site: Site) -> None:
    whole = None
    for chunk in chat(site, "demo", stream_usage=True).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content.strip() == ROME
    assert whole.usage_metadata["output_tokens"] > 0


async def chats_are_answered_beside_each_other(site: Site) -> None:
    model = chat(site, "demo")
    answers = await model.abatch([QUESTION] * 4)
    assert [answer.content.strip() for answer in answers] == [ROME] * 4
    assert "".join([chunk.content async for chunk in model.astream(QUESTION)]).strip() == ROME


def a_text_is_completed(site: Site) -> None:
    model = OpenAI(base_url=site.url, api_key=site.key, model="demo", temperature=0, max_tokens=12)
    assert "Rome" in model.invoke(f"<|user|>{QUESTION}<|end|><|assistant|>")


def tools_are_called_and_answered(site: Site, **options: Any) -> None:
    known = {"weather": tool(weather)}
    model = chat(site, "echo", **options).bind_tools([*known.values()])
    messages: list[Any] = [HumanMessage(CALL_OF_WEATHER)]
    for _ in range(2):
        answer = model.invoke(messages)
        messages.append(answer)
        for call in answer.tool_calls:
            assert call["args"] == {"town": "Rome"}
            messages.append(known[call["name"]].invoke(call))
    assert [type(message).__name__ for message in messages] == ["HumanMessage", "AIMessage", "ToolMessage", "AIMessage"]
    assert isinstance(messages[2], ToolMessage)
    assert messages[3].text == SUNNY
    streamed = None
    for chunk in model.stream([HumanMessage(CALL_OF_WEATHER)]):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [call["args"] for call in streamed.tool_calls] == [{"town": "Rome"}]


def tools_are_called_and_answered_in_responses(site: Site) -> None:
    tools_are_called_and_answered(site, use_responses_api=True)


def answers_are_structured(site: Site) -> None:
    structured = chat(site, "demo").with_structured_output(City)  # by a JSON schema
    assert isinstance(structured.invoke(QUESTION), City)
    in_responses = chat(site, "demo", use_responses_api=True).with_structured_output(City)
    assert isinstance(in_responses.invoke(QUESTION), City)


def a_tool_is_called_where_one_must_be(site: Site) -> None:
    model = chat(site, "maker").bind_tools([tool(weather)], tool_choice="any")
    answer = model.invoke(QUESTION)
    assert {call["name"] for call in answer.tool_calls} == {"weather"}
    by_a_tool = chat(site, "maker").with_structured_output(City, method="function_calling")
    assert isinstance(by_a_tool.invoke(QUESTION), City)


def texts_become_vectors(site: Site) -> None:
    # Without the switch it sends token ids of OpenAI's own tokenizer.
    embeddings: Any = OpenAIEmbeddings(
        model="embed", base_url=site.url, api_key=site.key, check_embedding_ctx_length=False, max_retries=0
    )
    hello, bye = embeddings.embed_documents(["hello", "bye"])
    assert len(hello) == len(bye) == 16
    assert all(abs(value - other) < 1e-6 for value, other in zip(hello, embeddings.embed_query("hello"), strict=True))


if __name__ == "__main__":
    run_all(
        a_chat_is_answered,
        a_chat_streams,
        chats_are_answered_beside_each_other,
        a_text_is_completed,
        tools_are_called_and_answered,
        tools_are_called_and_answered_in_responses,
        answers_are_structured,
        a_tool_is_called_where_one_must_be,
        texts_become_vectors,
    )
