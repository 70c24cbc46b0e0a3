// SPDX-License-Identifier: Apache-2.0
/** Server-sent events, read from a text that comes in pieces cut anywhere (WHATWG HTML, 9.2.6). */

export class EventStream {
  #line = "";
  #data = [];
  #isFirst = true;
  #skipsLineFeed = false;

  /** Return the data of each event that a piece of the text completes. */
  push(text) {
    if (this.#isFirst && text) {
      this.#isFirst = false;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    const events = [];
    let from = 0;
    for (let at = 0; at < text.length; at += 1) {
      const char = text[at];
      if (char === "\n" && this.#skipsLineFeed && at === from) {
        this.#skipsLineFeed = false;
        from = at + 1;
        continue;
      }
      if (char !== "\n" && char !== "\r") continue;
      this.#read(this.#line + text.slice(from, at), events);
      this.#line = "";
      this.#skipsLineFeed = char === "\r";
      from = at + 1;
    }
    if (from < text.length) this.#skipsLineFeed = false;
    this.#line += text.slice(from);
    return events;
  }

  #read(line, events) {
    if (line === "") {
      if (this.#data.length > 0) events.push(this.#data.join("\n"));
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== "data") return; // comments, and fields that the API does not send
    const value = colon < 0 ? "" : line.slice(colon + 1);
    this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
  }
}

/** Yield the data of each event in the body of an answer. */
export async function* eventsOf(body) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const events = new EventStream();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* events.push(decoder.decode(value, { stream: !done }));
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined); // whoever stops reading ends the request
  }
}
