// SPDX-License-Identifier: Apache-2.0
/** The page: who looks at it, and which of its views is shown. */

import { get, hasKey, useKey } from "./api.js";
import { ChatView } from "./chat_view.js";
import { CompareView } from "./compare_view.js";
import { byId, showFailure } from "./elements.js";
import { LiveView } from "./live_view.js";

const VIEWS = { chat: "Chat", compare: "Compare", live: "Live" };
const SIGN_IN = "sign-in";

const chat = new ChatView();
const compare = new CompareView();
const live = new LiveView(signInAgain);
let isIn = false;
let isAdmin = false;

/** Begin with the key of this tab, or with none: a gateway that wants one says so. */
async function begin() {
  byId("opening").textContent = "Asking the gateway …";
  try {
    await enter();
  } catch (failure) {
    if (failure.status !== 401 && failure.status !== 403) {
      showFailure(byId("opening"), failure, begin);
      return;
    }
    byId("opening").replaceChildren();
    showSignIn(hasKey() ? failure : null);
    return;
  }
  byId("opening").replaceChildren();
}

/** Ask what the key may use, and show it. Throws ApiFailure. */
async function enter() {
  const names = (await get("v1/models")).data.filter((model) => model.task !== "embedding").map((model) => model.id);
  chat.offer(names);
  compare.offer(names);
  isAdmin = await lookAtFigures();
  isIn = true;
  document.querySelector("nav").hidden = false;
  document.querySelector('nav a[href="#live"]').hidden = !isAdmin;
  byId("sign-out").hidden = !hasKey();
  showView();
}

/** Return whether the key may see the figures; the releases that these name are suggested. */
async function lookAtFigures() {
  try {
    const { models, servers } = await get("admin/status");
    const engines = servers.flatMap((server) => server.figures?.engines ?? []).filter((engine) => engine.is_up);
    const releases = {};
    for (const { name } of models) {
      const found = engines.filter((engine) => engine.model === name).map((engine) => engine.release);
      releases[name] = [...new Set(found)].sort((one, other) => one - other);
    }
    chat.suggest(releases);
    compare.suggest(releases);
    return true;
  } catch (failure) {
    if (failure.status === 401) throw failure;
    return failure.status !== 403; // what else is wrong with the figures is told where they are shown
  }
}

function showSignIn(failure = null) {
  isIn = false;
  useKey("");
  chat.clear();
  compare.clear();
  document.querySelector("nav").hidden = true;
  byId("sign-out").hidden = true;
  showOnly(SIGN_IN);
  showKeyFailure(failure);
  byId("key").focus();
}

function signInAgain(failure) {
  showSignIn(failure);
}

function showKeyFailure(failure) {
  if (failure) showFailure(byId("key-failure"), failure);
  else byId("key-failure").replaceChildren();
  byId("key").toggleAttribute("aria-invalid", false);
  if (failure) byId("key").setAttribute("aria-invalid", "true");
}

async function signIn(event) {
  event.preventDefault();
  const given = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    showKeyFailure({ message: given ? "a key has no spaces, and no letters beyond ASCII" : "type a key" });
    return;
  }
  useKey(given);
  try {
    await enter();
  } catch (failure) {
    useKey("");
    showKeyFailure(failure);
    byId("key").select();
    return;
  }
  byId("key").value = "";
  showKeyFailure(null);
}

function showView() {
  if (!isIn) return;
  const name = location.hash.slice(1) || "chat";
  if (!(name in VIEWS) || (name === "live" && !isAdmin)) {
    if (!isViewShown()) location.replace("#chat"); // other marks lead into the view that is shown
    return;
  }
  showOnly(name);
  document.title = `${VIEWS[name]} · Trireme`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (name === "chat") chat.focus();
  else if (name === "compare") showCompare();
  else byId("main").focus();
}

function showCompare() {
  compare.focus();
  if (isAdmin) lookAtFigures().catch(() => undefined); // releases come and go; without suggestions one types
}

function isViewShown() {
  return Object.keys(VIEWS).some((view) => !byId(`view-${view}`).hidden);
}

function showOnly(name) {
  for (const view of [SIGN_IN, ...Object.keys(VIEWS)]) byId(`view-${view}`).hidden = view !== name;
  live.show(name === "live");
}

byId("sign-in").addEventListener("submit", signIn);
byId("sign-out").addEventListener("click", () => showSignIn());
addEventListener("hashchange", showView);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  chat.stop();
  compare.stop();
});
await begin();
