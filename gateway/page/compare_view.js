// SPDX-License-Identifier: Apache-2.0
/** The comparison: one prompt to two models, or to two releases of one, side by side. */

import { amount, duration } from "./answer_figures.js";
import { AnswerView } from "./answer_view.js";
import { AskOptions, ModelChoice } from "./ask_options.js";
import { byId, make, say, sendByEnter } from "./elements.js";

const FIGURES = [
  ["TTFT", (figures) => figures.ttftMs, duration],
  ["tokens/s", (figures) => figures.tokensPerS, amount],
  ["tokens", (figures) => figures.tokens, amount],
  ["time", (figures) => figures.totalMs, duration],
];

export class CompareView {
  #options = new AskOptions();
  #prompt = byId("prompt");
  #sides = ["left", "right"].map((id) => ({ place: byId(id), choice: new ModelChoice(), answer: null }));
  #stop = null;

  constructor() {
    byId("compare-options").append(this.#options.element);
    for (const { place, choice } of this.#sides) place.append(choice.element);
    sendByEnter(this.#prompt);
    byId("compare").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("compare-stop").addEventListener("click", () => this.stop());
  }

  /** Offer models; where there are several, the sides begin with different ones. */
  offer(names) {
    this.#sides.forEach(({ choice }, number) => {
      choice.offer(names);
      choice.choose(number);
    });
  }

  /** Suggest releases, by the names of their models; of an only model with several, the sides begin with two of them. */
  suggest(releases) {
    for (const { choice } of this.#sides) choice.suggest(releases);
    const [only, ...others] = Object.values(releases);
    if (others.length || !only || only.length < 2 || this.#sides.some(({ answer }) => answer)) return;
    this.#sides[0].choice.nameRelease(only.at(0));
    this.#sides[1].choice.nameRelease(only.at(-1));
  }

  /** Take the focus. */
  focus() {
    this.#prompt.focus();
  }

  /** Stop both answers; nothing where none comes. */
  stop() {
    this.#stop?.abort();
  }

  /** Forget the prompt and the answers. */
  clear() {
    this.stop();
    this.#prompt.value = "";
    byId("compared").hidden = true;
    for (const side of this.#sides) {
      side.answer?.element.remove();
      side.answer = null;
    }
  }

  async #send() {
    const text = this.#prompt.value.trim();
    if (!text || this.#stop) return;
    const fields = this.#options.read();
    if (fields === null) return;
    const wrong = this.#sides.map(({ choice }) => choice.wrong).find(Boolean);
    if (wrong) {
      wrong.reportValidity();
      return;
    }
    const stop = new AbortController();
    this.#stop = stop;
    this.#showRunning(true);
    byId("compared").hidden = true;
    say("Both answers are being written.");
    const messages = [...this.#options.before, { role: "user", content: text }];
    const asked = this.#sides.map((side) => {
      side.answer?.element.remove();
      side.answer = new AnswerView(side.choice.name);
      side.place.append(side.answer.element);
      return () => side.answer.run({ model: side.answer.name, messages, ...fields }, stop.signal);
    });
    if (byId("in-turns").checked) {
      for (const ask of asked) if (!stop.signal.aborted) await ask();
    } else {
      await Promise.all(asked.map((ask) => ask()));
    }
    this.#stop = null;
    this.#showRunning(false);
    this.#showCompared();
  }

  #showCompared() {
    const [left, right] = this.#sides.map(({ answer }) => answer);
    if (!left.isWhole || !right.isWhole) return;
    const rows = FIGURES.map(([name, of, shown]) => {
      const [one, other] = [of(left.figures), of(right.figures)];
      const ratio = one && other ? (other / one).toFixed(2) : "–";
      const cells = [shown(one), shown(other), ratio].map((text) => make("td", {}, text));
      return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
    });
    byId("compared").querySelector("tbody").replaceChildren(...rows);
    byId("same-text").textContent = sameness(left.text, right.text);
    byId("compared").hidden = false;
  }

  #showRunning(isRunning) {
    const hadFocus = document.activeElement;
    byId("compare-stop").hidden = !isRunning;
    byId("compare-send").hidden = isRunning;
    if (hadFocus === byId("compare-send") || hadFocus === byId("compare-stop")) {
      (isRunning ? byId("compare-stop") : this.#prompt).focus();
    }
  }
}

/** Return how far two texts are the same, by characters as people count them. */
export function sameness(left, right) {
  if (left === right) return "Both texts are the same.";
  const [one, other] = [[...left], [...right]];
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  return `The texts differ from character ${at + 1} on.`;
}
