// SPDX-License-Identifier: Apache-2.0
/** A chat that streams: the pieces of one answer, as the API sends them. */

import { ApiFailure, failureOf, post } from "./api.js";
import { eventsOf } from "./event_stream.js";

/**
 * Yield the pieces of an answer: first {head}, then {content}, {reasoning}, {calls}, {finish} and {usage}.
 *
 * An abort of the signal cancels the request in the engine. Throws ApiFailure, and what an abort throws.
 */
export async function* chatPieces(body, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await post("v1/chat/completions", asked, signal);
  yield {
    head: {
      release: response.headers.get("x-trireme-release"),
      answeredBy: response.headers.get("x-trireme-answered-by"),
    },
  };
  let events;
  try {
    for await (const data of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      events = JSON.parse(data);
      if (events.error) throw failureOf(events.error);
      yield* piecesOf(events);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiFailure) throw error;
    throw brokenOff();
  }
  throw brokenOff();
}

function* piecesOf(event) {
  const [choice] = event.choices ?? [];
  if (choice) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (reasoning) yield { reasoning };
    if (content) yield { content };
    if (calls?.length) yield { calls };
    if (choice.finish_reason) yield { finish: choice.finish_reason };
  }
  if (event.usage) yield { usage: event.usage };
}

function brokenOff() {
  return new ApiFailure("the answer broke off before its end", { code: "broken_off" });
}
