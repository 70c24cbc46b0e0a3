// SPDX-License-Identifier: Apache-2.0
// OpenAI's client for JavaScript as its users have it: the same scenarios as those of the client for Python.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

const CAPITAL = [{ role: "user", content: "What is the capital of Italy?" }];
const ROME = "The capital of Italy is Rome.";
const CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>';
const ASKED_TO_CALL = [{ role: "user", content: CALL }];
const SUNNY = "Sunny in Rome.";
const LONG = { model: "slow", prompt: "Hi", max_tokens: 1500, temperature: 0 }; // half a minute
const SHORT = { model: "echo", prompt: "Hi", max_tokens: 2, temperature: 0 };
const RETRIES = 2;
const FREED_MS = 10_000;
const City = z.object({ name: z.string().regex(/^[A-Z][a-z]{2,9}$/), inhabitants: z.number().int().min(1).max(9) });

const site = JSON.parse(process.argv[2]);

function clientOf(options = {}) {
  return new OpenAI({ baseURL: site.url, apiKey: site.key, maxRetries: 0, ...options });
}

// A client, and what it says of each of its requests: how many were before it.
function counting(options) {
  const tries = [];
  const noted = (url, init) => {
    tries.push(new Headers(init.headers).get("x-stainless-retry-count"));
    return fetch(url, init);
  };
  return [clientOf({ maxRetries: RETRIES, fetch: noted, ...options }), tries];
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Return once the narrow key has a place: what was cancelled has ended.
async function waitForRoom() {
  const client = clientOf({ apiKey: site.narrow_key });
  for (const begun = Date.now(); ; await pause(100)) {
    try {
      return await client.completions.create(SHORT);
    } catch (error) {
      if (!(error instanceof OpenAI.RateLimitError)) throw error;
      assert.ok(Date.now() - begun < FREED_MS, "a cancelled request holds its place");
    }
  }
}

const scenarios = {
  async a_streamed_chat_is_the_whole_one() {
    const client = clientOf();
    const whole = await client.chat.completions.create({ model: "demo", messages: CAPITAL, temperature: 0 });
    let text = "";
    let usage;
    for await (const event of await client.chat.completions.create({
      ...{ model: "demo", messages: CAPITAL, temperature: 0 },
      ...{ stream: true, stream_options: { include_usage: true } },
    })) {
      text += event.choices[0]?.delta.content ?? "";
      usage = event.usage ?? usage;
    }
    assert.equal(text.trim(), ROME);
    assert.equal(whole.choices[0].message.content.trim(), ROME);
    assert.deepEqual(usage, whole.usage);
    const gathered = client.chat.completions.stream({ model: "demo", messages: CAPITAL, temperature: 0 });
    assert.equal((await gathered.finalContent()).trim(), ROME);
  },

  async raw_responses_have_their_headers() {
    const client = clientOf({ apiKey: site.narrow_key });
    const body = { model: "demo", messages: CAPITAL, temperature: 0 };
    const { data, response, request_id } = await client.chat.completions.create(body).withResponse();
    assert.equal(response.status, 200);
    assert.ok(request_id);
    assert.equal(data._request_id, request_id);
    assert.ok(data.id.endsWith(request_id));
    const raw = await client.completions.create({ ...SHORT, stream: true }).asResponse();
    assert.ok(raw.headers.get("content-type").startsWith("text/event-stream"));
    assert.ok((await raw.text()).endsWith("data: [DONE]\n\n"));
    await assert.rejects(client.chat.completions.create({ ...body, max_tokens: 100_000 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "max_tokens");
      assert.ok(error.requestID); // the server refused it
      return true;
    });
  },

  async answers_are_parsed_into_types() {
    const client = clientOf();
    const chat = await client.chat.completions.parse({
      ...{ model: "demo", messages: CAPITAL, temperature: 0 },
      response_format: zodResponseFormat(City, "city"),
    });
    City.parse(chat.choices[0].message.parsed);
    const response = await client.responses.parse({
      ...{ model: "demo", input: "Italy?", temperature: 0 },
      text: { format: zodTextFormat(City, "city") },
    });
    City.parse(response.output_parsed);
  },

  async responses_come_whole_and_as_events() {
    const client = clientOf();
    const body = { model: "demo", input: CAPITAL[0].content, temperature: 0 };
    const whole = await client.responses.create(body);
    assert.equal(whole.output_text.trim(), ROME);
    const kinds = [];
    const stream = client.responses.stream(body);
    for await (const event of stream) kinds.push(event.type);
    assert.equal(kinds[0], "response.created");
    assert.equal(kinds.at(-1), "response.completed");
    assert.equal((await stream.finalResponse()).output_text.trim(), ROME);
  },

  async responses_come_by_a_socket() {
    const socket = new ResponsesWS(clientOf());
    let previous;
    try {
      for (let turn = 0; turn < 2; turn += 1) {
        const done = new Promise((resolve, reject) => {
          socket.once("response.completed", resolve);
          socket.once("error", reject);
        });
        socket.send({
          ...{ type: "response.create", model: "demo", input: CAPITAL[0].content, temperature: 0 },
          previous_response_id: previous,
        });
        const { response } = await done;
        assert.equal(response.status, "completed");
        assert.notEqual(response.id, previous);
        previous = response.id;
      }
    } finally {
      socket.close();
    }
  },

  async a_time_out_is_tried_again_as_often_as_said() {
    const [client, tries] = counting({ timeout: 300 });
    await assert.rejects(client.completions.create(LONG), OpenAI.APIConnectionTimeoutError);
    assert.deepEqual(tries, ["0", "1", "2"]);
    await assert.rejects(
      client.completions.create(LONG, { timeout: 300, maxRetries: 0 }),
      OpenAI.APIConnectionTimeoutError,
    );
    assert.equal(tries.length, 4);
  },

  async a_limit_is_tried_again_until_there_is_room() {
    await waitForRoom();
    const other = clientOf({ apiKey: site.narrow_key });
    const running = await other.completions.create({ ...LONG, stream: true });
    await running[Symbol.asyncIterator]().next();
    const [client, tries] = counting({ apiKey: site.narrow_key });
    await assert.rejects(client.completions.create(SHORT), (error) => {
      assert.ok(error instanceof OpenAI.RateLimitError);
      assert.equal(error.code, "rate_limit_exceeded");
      assert.ok(Number(error.headers.get("retry-after")) > 0);
      return true;
    });
    assert.deepEqual(tries, ["0", "1", "2"]);
    tries.length = 0;
    const waiting = client.completions.create(SHORT, { maxRetries: 6 });
    while (tries.length < 2) await pause(20);
    running.controller.abort();
    assert.ok((await waiting).choices[0].text);
  },

  async a_server_that_is_away_is_tried_again() {
    const [client, tries] = counting({ baseURL: site.away_url });
    await assert.rejects(client.chat.completions.create({ model: "demo", messages: CAPITAL }), (error) => {
      assert.ok(error instanceof OpenAI.InternalServerError);
      assert.deepEqual([error.status, error.code], [503, "unavailable"]);
      return true;
    });
    assert.deepEqual(tries, ["0", "1", "2"]);
  },

  async an_address_where_nobody_is_is_tried_again() {
    const [client, tries] = counting({ baseURL: site.nowhere_url });
    await assert.rejects(client.models.list(), OpenAI.APIConnectionError);
    assert.deepEqual(tries, ["0", "1", "2"]);
  },

  async a_request_that_is_wrong_is_tried_once() {
    const [client, tries] = counting();
    await assert.rejects(
      client.chat.completions.create({ model: "gpt-5", messages: CAPITAL }),
      OpenAI.NotFoundError,
    );
    await assert.rejects(client.completions.create({ ...SHORT, temperature: 3 }), OpenAI.BadRequestError);
    assert.deepEqual(tries, ["0", "0"]);
    await assert.rejects(clientOf({ apiKey: "tri-nobody" }).models.list(), OpenAI.AuthenticationError);
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names.sort(), ["demo", "echo", "embed", "maker", "slow"]);
  },

  async a_request_is_aborted_in_the_middle() {
    const client = clientOf({ apiKey: site.narrow_key });
    await waitForRoom();
    for await (const event of await client.completions.create({ ...LONG, stream: true })) {
      assert.ok(event.choices);
      break; // which ends the request
    }
    await waitForRoom();
    const aborting = new AbortController();
    const whole = client.completions.create(LONG, { signal: aborting.signal });
    setTimeout(() => aborting.abort(), 500);
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await waitForRoom();
    const stream = client.responses.stream({ model: "slow", input: "a ".repeat(700), temperature: 0 });
    for await (const event of stream) if (event.type === "response.output_text.delta") break;
    await waitForRoom();
  },

  async tools_are_run_until_the_answer() {
    const asked = [];
    const tools = [
      zodFunction({
        name: "weather",
        parameters: z.object({ town: z.string() }),
        function: ({ town }) => {
          asked.push(town);
          return SUNNY;
        },
      }),
    ];
    const body = { model: "echo", messages: ASKED_TO_CALL, tools, temperature: 0 };
    const runner = clientOf().chat.completions.runTools(body);
    assert.equal(await runner.finalContent(), SUNNY);
    assert.deepEqual(asked, ["Rome"]);
    assert.deepEqual(
      runner.messages.map((message) => message.role),
      ["user", "assistant", "tool", "assistant"],
    );
    const streaming = clientOf().chat.completions.runTools({ ...body, stream: true });
    let text = "";
    for await (const event of streaming) text += event.choices[0]?.delta.content ?? "";
    assert.equal(text, SUNNY);
    assert.equal(asked.length, 2);
  },

  async tools_are_called_in_responses() {
    const client = clientOf();
    const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
    const tools = [{ type: "function", name: "weather", parameters, strict: false }];
    const body = { model: "echo", tools, temperature: 0 };
    const first = await client.responses.parse({ ...body, input: CALL });
    const [call] = first.output;
    assert.deepEqual([call.type, call.name], ["function_call", "weather"]);
    const output = { type: "function_call_output", call_id: call.call_id, output: SUNNY };
    const conversation = [{ role: "user", content: CALL }, ...first.output, output];
    const second = await client.responses.create({ ...body, input: conversation });
    assert.equal(second.output_text, SUNNY);
  },

  async calls_are_made_where_there_must_be_some() {
    const asked = [];
    const parameters = z.object({ town: z.enum(["Rome", "Paris", "Lima"]), days: z.number().int().min(1).max(9) });
    const tools = [zodFunction({ name: "forecast", parameters, function: (found) => asked.push(found) })];
    const client = clientOf();
    const body = { model: "maker", messages: CAPITAL, temperature: 0 };
    const free = await client.chat.completions.create({ ...body, tools });
    assert.equal(free.choices[0].message.tool_calls, undefined); // this model never calls by itself
    const required = await client.chat.completions.parse({ ...body, tools, tool_choice: "required" });
    assert.equal(required.choices[0].finish_reason, "tool_calls");
    parameters.parse(required.choices[0].message.tool_calls[0].function.parsed_arguments);
    const tool_choice = { type: "function", function: { name: "forecast" } };
    await client.chat.completions.runTools({ ...body, tools, tool_choice, stream: true }).done();
    assert.equal(asked.length, 1);
    parameters.parse(asked[0]);
  },

  async texts_become_vectors() {
    const client = clientOf();
    const both = await client.embeddings.create({ model: "embed", input: ["hello", "bye"] });
    const one = await client.embeddings.create({ model: "embed", input: "hello", encoding_format: "float" });
    assert.deepEqual(both.data.map((each) => each.embedding.length), [16, 16]);
    one.data[0].embedding.forEach((value, at) => assert.ok(Math.abs(value - both.data[0].embedding[at]) < 1e-6));
    assert.ok(both.usage.total_tokens > one.usage.total_tokens);
    const long = client.embeddings.create({ model: "embed", input: "b ".repeat(99) });
    await assert.rejects(long, (error) => error.code === "context_length_exceeded" && error.param === "input");
  },
};

const found = {};
for (const [name, run] of Object.entries(scenarios)) {
  try {
    await run();
    found[name] = "";
  } catch (error) {
    found[name] = String(error?.stack ?? error);
  }
}
console.log(JSON.stringify(found));
