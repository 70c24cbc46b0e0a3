# SPDX-License-Identifier: Apache-2.0
"""The OpenAI Agents SDK as its users have it: agents with tools, through chat completions and through responses."""

from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from official_client import CALL, ROME, City
from openai import AsyncOpenAI
from scenarios import Site, run_all

QUESTION = "What is the capital of Italy?"
SUNNY = "Sunny in Rome."
CALL_OF_WEATHER = CALL.replace("Weather", "weather")
WAYS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)

asked: list[str] = []


def weather(town: Literal["Rome", "Paris", "Lima"]) -> str:
    """Tell the weather of a town."""
    asked.append(town)
    return f"Sunny in {town}."


def agent(site: Site, way: Any, name: str, **options: Any) -> Any:
    client = AsyncOpenAI(base_url=site.url, api_key=site.key, max_retries=0)
    model = way(model=name, openai_client=client)
    return Agent(name="helper", model=model, model_settings=ModelSettings(temperature=0), **options)


async def an_agent_answers(site: Site) -> None:
    for way in WAYS:
        found = await Runner.run(agent(site, way, "demo"), QUESTION)
        assert found.final_output.strip() == ROME, way
        assert found.context_wrapper.usage.output_tokens > 0, way


async def an_agent_calls_its_tool(site: Site) -> None:
    for way in WAYS:
        asked.clear()
        found = await Runner.run(agent(site, way, "echo", tools=[function_tool(weather)]), CALL_OF_WEATHER)
        assert (found.final_output, asked) == (SUNNY, ["Rome"]), way
        again = [*found.to_input_list(), {"role": "user", "content": CALL_OF_WEATHER}]  # the next turn
        found = await Runner.run(agent(site, way, "echo", tools=[function_tool(weather)]), again)
        assert (found.final_output, asked) == (SUNNY, ["Rome"] * 2), way


async def an_agent_calls_its_tool_as_a_stream(site: Site) -> None:
    for way in WAYS:
        asked.clear()
        running = Runner.run_streamed(agent(site, way, "echo", tools=[function_tool(weather)]), CALL_OF_WEATHER)
        kinds = [event.type async for event in running.stream_events()]
        assert "raw_response_event" in kinds, way
        assert (running.final_output, asked) == (SUNNY, ["Rome"]), way


async def an_agent_hands_over(site: Site) -> None:
    for way in WAYS:
        other = agent(site, way, "demo")
        other.name = "geographer"
        first = agent(site, way, "echo", handoffs=[other])
        found = await Runner.run(first, '<tool_call>{"name": "transfer_to_geographer", "arguments": {}}</tool_call>')
        assert found.last_agent.name == "geographer", way
        assert found.final_output, way


async def an_agent_answers_in_a_type(site: Site) -> None:
    for way in WAYS:
        found = await Runner.run(agent(site, way, "demo", output_type=City), QUESTION)
        assert isinstance(found.final_output, City), way


async def an_agent_calls_its_tool_where_it_must(site: Site) -> None:
    for way in WAYS:
        asked.clear()
        made = agent(site, way, "maker", tools=[function_tool(weather)])
        made.model_settings = ModelSettings(temperature=0, tool_choice="required", parallel_tool_calls=False)
        found = await Runner.run(made, QUESTION)  # the first turn must call; the SDK lets the second one answer
        assert len(asked) == 1, way
        assert asked[0] in {"Rome", "Paris", "Lima"}, way
        assert found.final_output, way


if __name__ == "__main__":
    set_tracing_disabled(True)
    run_all(
        an_agent_answers,
        an_agent_calls_its_tool,
        an_agent_calls_its_tool_as_a_stream,
        an_agent_hands_over,
        an_agent_answers_in_a_type,
        an_agent_calls_its_tool_where_it_must,
    )
