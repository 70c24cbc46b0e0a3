// SPDX-License-Identifier: Apache-2.0
/** The chat: one conversation, whose answers stream. */

import { AnswerView } from "./answer_view.js";
import { AskOptions, ModelChoice } from "./ask_options.js";
import { byId, copyOf, say, sendByEnter } from "./elements.js";

const WIDE = "(min-width: 60rem)";

export class ChatView {
  #choice = new ModelChoice();
  #options = new AskOptions();
  #message = byId("message");
  #turns = []; // what was asked, and the answer to it
  #stop = null;

  constructor() {
    const options = byId("chat-options");
    options.append(this.#choice.element, this.#options.element);
    options.open = matchMedia(WIDE).matches;
    sendByEnter(this.#message);
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => {
      this.clear();
      this.focus();
      say("A new chat.");
    });
  }

  /** Offer models. */
  offer(names) {
    this.#choice.offer(names);
  }

  /** Suggest releases, by the names of their models. */
  suggest(releases) {
    this.#choice.suggest(releases);
  }

  /** Take the focus. */
  focus() {
    this.#message.focus();
  }

  /** Stop the answer that comes; nothing where none does. */
  stop() {
    this.#stop?.abort();
  }

  /** Forget the conversation. */
  clear() {
    this.stop();
    this.#turns = [];
    byId("turns").replaceChildren();
    byId("chat-empty").hidden = false;
  }

  #send() {
    const text = this.#message.value.trim();
    if (!text || this.#stop) return;
    const fields = this.#options.read();
    if (fields === null) return;
    if (this.#choice.wrong) {
      this.#choice.wrong.reportValidity();
      return;
    }
    this.#message.value = "";
    const turn = { asked: text, answer: new AnswerView(this.#choice.name), isKept: false };
    const element = copyOf("turn-template");
    element.querySelector(".text").textContent = text;
    element.append(turn.answer.element);
    byId("turns").append(element);
    byId("chat-empty").hidden = true;
    this.#turns.push(turn);
    this.#ask(turn, fields);
  }

  async #ask(turn, fields) {
    if (this.#stop) return;
    const { answer } = turn;
    const stop = new AbortController();
    this.#stop = stop;
    this.#showRunning(true);
    say("The answer is being written.");
    const body = { model: answer.name, messages: this.#messagesFor(turn), ...fields };
    scrollToEnd();
    turn.isKept = await answer.run(body, stop.signal, {
      retry: () => this.#ask(turn, fields),
      onPiece: followEnd,
    });
    this.#stop = null;
    this.#showRunning(false);
    followEnd();
  }

  /** Return the conversation up to a question; what failed is no part of it. */
  #messagesFor(turn) {
    const messages = [...this.#options.before];
    for (const earlier of this.#turns) {
      if (earlier === turn) break;
      if (!earlier.isKept || !earlier.answer.text) continue;
      messages.push({ role: "user", content: earlier.asked }, { role: "assistant", content: earlier.answer.text });
    }
    messages.push({ role: "user", content: turn.asked });
    return messages;
  }

  #showRunning(isRunning) {
    const hadFocus = document.activeElement;
    byId("stop").hidden = !isRunning;
    byId("send").hidden = isRunning;
    if (hadFocus === byId("send") || hadFocus === byId("stop")) (isRunning ? byId("stop") : this.#message).focus();
  }
}

function scrollToEnd() {
  scrollTo({ top: document.documentElement.scrollHeight });
}

/** Stay at the end, unless a person has scrolled away from it. */
function followEnd() {
  const { scrollHeight, clientHeight } = document.documentElement;
  if (scrollHeight - clientHeight - scrollY < 160) scrollToEnd();
}
