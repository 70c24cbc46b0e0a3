// SPDX-License-Identifier: Apache-2.0
/** Elements of the page. Text is always set as text: nothing that a model or a server says becomes markup. */

/** Return the element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a copy of a template's only element. */
export function copyOf(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

/** Return a new element with a class and children; strings are text. */
export function make(name, { className = "", ...attributes } = {}, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

/** Let a screen reader say something when it has said the rest. */
export function say(text) {
  byId("said").textContent = text;
}

/** Show a failure with its code; `retry` is called by a button, which waits as long as the API asked. */
export function showFailure(place, failure, retry = null) {
  place.replaceChildren(failure.message);
  const code = [failure.status || "", failure.code].filter(Boolean).join(" ");
  if (code) place.append(" ", make("code", {}, code));
  if (!retry) return;
  const button = make("button", { type: "button" }, "Try again");
  button.addEventListener("click", retry);
  place.append(button);
  if (failure.retryAfterS) waitBeforeRetry(button, failure.retryAfterS);
}

function waitBeforeRetry(button, seconds) {
  const until = Date.now() + 1000 * seconds;
  button.disabled = true;
  const tick = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0 && button.isConnected) setTimeout(tick, 250);
  };
  setTimeout(tick); // once it is in the page
}

/** Send a form by Enter in a text of several lines; Shift+Enter begins a new line, as does what writes a character. */
export function sendByEnter(textarea) {
  textarea.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    textarea.form.requestSubmit();
  });
}
