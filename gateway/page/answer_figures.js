// SPDX-License-Identifier: Apache-2.0
/** The figures of one answer: TTFT, tokens and tokens a second, while it comes and as the API counts them in the end. */

export class AnswerFigures {
  #now;
  #begun;
  #first = null;
  #last = null;
  #ended = null;
  #chunks = 0;
  #usage = null;

  /** Begin to measure; `now` returns milliseconds. */
  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#begun = now();
  }

  /** Note that text has come. */
  noteText() {
    this.#last = this.#now();
    this.#first ??= this.#last;
    this.#chunks += 1;
  }

  /** Note the tokens as the API counts them. */
  noteUsage(usage) {
    this.#usage = usage;
  }

  /** Note the end. */
  end() {
    this.#ended ??= this.#now();
  }

  /** Milliseconds to the first text; null: none has come. */
  get ttftMs() {
    return this.#first === null ? null : this.#first - this.#begun;
  }

  /** Milliseconds since the request was sent, or to its end. */
  get totalMs() {
    return (this.#ended ?? this.#now()) - this.#begun;
  }

  /** Whether the tokens are the API's count; until then each piece of text is taken for one. */
  get isExact() {
    return this.#usage !== null;
  }

  get tokens() {
    return this.#usage?.completion_tokens ?? this.#chunks;
  }

  get promptTokens() {
    return this.#usage?.prompt_tokens ?? null;
  }

  get cachedTokens() {
    return this.#usage?.prompt_tokens_details?.cached_tokens ?? null;
  }

  /** Tokens a second after the first one; null: there are not two, or they came at once. */
  get tokensPerS() {
    if (this.tokens < 2 || this.#first === null || this.#last <= this.#first) return null;
    return (1000 * (this.tokens - 1)) / (this.#last - this.#first);
  }
}

/** Return milliseconds for people. */
export function duration(ms) {
  if (ms === null) return "–";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

/** Return a number for people, with about three digits. */
export function amount(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(value < 10 ? 2 : 1);
}
