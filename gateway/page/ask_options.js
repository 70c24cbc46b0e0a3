// SPDX-License-Identifier: Apache-2.0
/** The options of a request: the model and its release, and what else a body may say. */

import { copyOf, make } from "./elements.js";

let numLists = 0;

/** The choice of a model, or of one release of it. */
export class ModelChoice {
  #select;
  #release;
  #known;
  #releases = {};

  constructor() {
    this.element = copyOf("choice-template");
    this.#select = this.element.querySelector("select");
    this.#release = this.element.querySelector("input");
    numLists += 1;
    this.#known = make("datalist", { id: `releases-${numLists}` });
    this.#release.setAttribute("list", this.#known.id);
    this.element.append(this.#known);
    this.#select.addEventListener("change", () => this.#suggest());
  }

  /** Offer some models, by their names; the one that is chosen stays so. */
  offer(names) {
    const before = this.#select.value;
    this.#select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(before)) this.#select.value = before;
  }

  /** Choose the n-th of the models. */
  choose(number) {
    this.#select.selectedIndex = Math.min(number, this.#select.options.length - 1);
    this.#suggest();
  }

  /** Suggest releases, by the names of their models; any other one may be typed in all the same. */
  suggest(releases) {
    this.#releases = releases;
    this.#suggest();
  }

  /** Name a release, where none is named. */
  nameRelease(number) {
    if (!this.#release.value) this.#release.value = number;
  }

  #suggest() {
    const known = this.#releases[this.#select.value] ?? [];
    this.#known.replaceChildren(...known.map((number) => make("option", { value: String(number) })));
  }

  /** The name as the API takes it: `chat`, or `chat@7`. */
  get name() {
    const release = this.#release.value.trim();
    return release ? `${this.#select.value}@${release}` : this.#select.value;
  }

  /** Return the first field that the browser finds wrong; null: none is. */
  get wrong() {
    return this.#release.validity.valid ? null : this.#release;
  }
}

/** The fields of a body beside its model and messages. */
export class AskOptions {
  constructor() {
    this.element = copyOf("options-template");
  }

  #field(name) {
    return this.element.querySelector(`[name=${name}]`);
  }

  /** Return the fields of a body; null: one of them is wrong, which is said and has the focus. */
  read() {
    const failure = this.element.querySelector(".failure");
    failure.textContent = "";
    const fields = {};
    for (const name of ["temperature", "max_tokens", "seed"]) {
      const input = this.#field(name);
      input.removeAttribute("aria-invalid");
      if (!input.validity.valid) return this.#refuse(input, `${name}: ${input.validationMessage}`);
      if (input.value !== "") fields[name] = Number(input.value);
    }
    const tools = this.#field("tools");
    tools.removeAttribute("aria-invalid");
    if (tools.value.trim()) {
      try {
        fields.tools = JSON.parse(tools.value);
      } catch (error) {
        return this.#refuse(tools, `tools: no JSON: ${error.message}`);
      }
    }
    return fields;
  }

  /** The messages before those of a person. */
  get before() {
    const system = this.#field("system").value.trim();
    return system ? [{ role: "system", content: system }] : [];
  }

  #refuse(field, why) {
    this.element.querySelector(".failure").textContent = why;
    field.setAttribute("aria-invalid", "true");
    const folded = this.element.closest("details");
    if (folded) folded.open = true;
    field.focus();
    return null;
  }
}
