// SPDX-License-Identifier: Apache-2.0
/** One answer on the page: its text as it comes, reasoning and calls apart, figures, and what went wrong. */

import { AnswerFigures, amount, duration } from "./answer_figures.js";
import { ApiFailure } from "./api.js";
import { chatPieces } from "./chat_stream.js";
import { copyOf, make, say, showFailure } from "./elements.js";

const TICK_MS = 200;

export class AnswerView {
  #text;
  #reasoning;
  #calls = new Map();

  /** `name` is that of the model as it is asked for. */
  constructor(name) {
    this.element = copyOf("answer-template");
    this.name = name;
    this.figures = null;
    this.isWhole = false;
    this.finish = "";
    this.#part(".by").textContent = name;
    this.element.setAttribute("aria-label", `Answer of ${name}`);
    this.#clear();
  }

  /** The text of the answer, without its reasoning. */
  get text() {
    return this.#text.data;
  }

  #part(selector) {
    return this.element.querySelector(selector);
  }

  #clear() {
    this.#text = document.createTextNode("");
    this.#reasoning = document.createTextNode("");
    this.#calls.clear();
    this.#part(":scope > .text").replaceChildren(this.#text);
    this.#part(".reasoning .text").replaceChildren(this.#reasoning);
    this.#part(".reasoning").hidden = true;
    this.#part(".calls").replaceChildren();
    this.#part(".calls").hidden = true;
    this.#part(".failure").replaceChildren();
    this.#part(".end").textContent = "–";
    this.finish = "";
    this.isWhole = false;
  }

  /**
   * Ask, and show the answer; `retry` asks once more, where that may help. Returns whether there is an answer, or a part
   * of one that was stopped.
   */
  async run(body, signal, { retry = null, onPiece = () => undefined } = {}) {
    this.#clear();
    this.figures = new AnswerFigures();
    this.element.setAttribute("aria-busy", "true");
    const ticking = setInterval(() => this.#showFigures(), TICK_MS);
    try {
      for await (const piece of chatPieces(body, signal)) {
        this.#take(piece);
        onPiece();
      }
      this.isWhole = true;
      say(`${this.name} has answered: ${this.text || this.#described()}`);
      return true;
    } catch (error) {
      if (error.name === "AbortError") {
        this.finish = "stopped";
        say("Stopped.");
        return this.text !== "";
      }
      const failure = error instanceof ApiFailure ? error : new ApiFailure(`this page failed: ${error.message}`);
      this.finish = "failed";
      showFailure(this.#part(".failure"), failure, mayHelp(failure) ? retry : null);
      return false;
    } finally {
      clearInterval(ticking);
      this.figures.end();
      this.element.setAttribute("aria-busy", "false");
      this.#showFigures();
    }
  }

  #take({ head, content, reasoning, calls, finish, usage }) {
    if (head) this.#part(".by").textContent = this.#by(head);
    if (content || reasoning || calls) this.figures.noteText();
    if (content) this.#text.appendData(content);
    if (reasoning) {
      this.#part(".reasoning").hidden = false;
      this.#reasoning.appendData(reasoning);
    }
    for (const call of calls ?? []) this.#takeCall(call);
    if (finish) this.finish = finish;
    if (usage) this.figures.noteUsage(usage);
    this.#showFigures();
  }

  #by({ release, answeredBy }) {
    const said = [this.name];
    if (release && !this.name.endsWith(`@${release}`)) said.push(`release ${release}`);
    if (answeredBy) said.push(`answered by ${answeredBy}`);
    return said.join(" · ");
  }

  #takeCall(call) {
    let shown = this.#calls.get(call.index);
    if (!shown) {
      shown = { name: document.createTextNode(""), given: document.createTextNode("") };
      this.#calls.set(call.index, shown);
      this.#part(".calls").append(make("li", {}, shown.name, "(", shown.given, ")"));
      this.#part(".calls").hidden = false;
    }
    shown.name.appendData(call.function?.name ?? "");
    shown.given.appendData(call.function?.arguments ?? "");
  }

  #described() {
    return this.#calls.size ? `${this.#calls.size} calls of tools` : "nothing";
  }

  #showFigures() {
    const { figures } = this;
    const approximately = figures.isExact || figures.tokens === 0 ? "" : "≈ ";
    this.#part(".ttft").textContent = duration(figures.ttftMs);
    this.#part(".rate").textContent = figures.tokensPerS === null ? "–" : approximately + amount(figures.tokensPerS);
    this.#part(".tokens").textContent = approximately + this.#tokens();
    this.#part(".time").textContent = duration(figures.totalMs);
    this.#part(".end").textContent = this.finish || "–";
  }

  #tokens() {
    const { tokens, promptTokens, cachedTokens } = this.figures;
    if (promptTokens === null) return String(tokens);
    return `${tokens} (prompt ${promptTokens}${cachedTokens ? `, ${cachedTokens} cached` : ""})`;
  }
}

/** Return whether the same request may succeed later. */
function mayHelp(failure) {
  return failure.status === 0 || failure.status === 429 || failure.status >= 500;
}
