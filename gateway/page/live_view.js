// SPDX-License-Identifier: Apache-2.0
/** The figures of this moment, for admins: requests, tokens, queue, KV cache and the rollout. */

import { amount, duration } from "./answer_figures.js";
import { get } from "./api.js";
import { byId, make, showFailure } from "./elements.js";
import { showRollout } from "./rollout_view.js";
import { sparkLine } from "./spark_line.js";

const EVERY_MS = 1000;
const ENGINE_COLUMNS = [["Model"], "Release", "In the batch", "Waiting", "KV cache", "Tokens/s"];
const SHORT = 3; // seconds over which tokens a second are shown

export class LiveView {
  #timer = null;
  #isPaused = false;
  #isShown = false;
  #onDenied;

  /** `onDenied` is called with the failure when the key is not accepted any more. */
  constructor(onDenied) {
    this.#onDenied = onDenied;
    byId("pause").addEventListener("click", () => this.#pause(!this.#isPaused));
    document.addEventListener("visibilitychange", () => this.#plan(0));
  }

  /** Show the figures from now on, or no more. */
  show(isShown) {
    this.#isShown = isShown;
    this.#plan(0);
  }

  #pause(isPaused) {
    this.#isPaused = isPaused;
    byId("pause").setAttribute("aria-pressed", String(isPaused));
    this.#plan(0);
  }

  #plan(afterMs) {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.#isShown || this.#isPaused || document.hidden) return;
    this.#timer = setTimeout(() => this.#look(), afterMs);
  }

  async #look() {
    const mine = this.#timer;
    try {
      const status = await get("admin/status", AbortSignal.timeout(10_000));
      if (mine !== this.#timer) return; // hidden or paused meanwhile
      byId("live-failure").replaceChildren();
      show(status);
    } catch (failure) {
      if (mine !== this.#timer) return;
      if (failure.status === 401) {
        this.#onDenied(failure);
        return;
      }
      showFailure(byId("live-failure"), failure);
    }
    this.#plan(EVERY_MS);
  }
}

function show(status) {
  byId("live-at").textContent = `at ${new Date(1000 * status.at).toLocaleTimeString()}, each second`;
  showTiles(status);
  showModels(status);
  showServers(status);
  showRollout(byId("rollout"), status);
}

function showTiles({ models, servers }) {
  const running = sum(models, (model) => model.running_requests);
  const tokens = sumOfLines(models.map((model) => model.tokens_per_s));
  const ended = sum(models, (model) => model.ended_requests);
  const failed = sum(models, (model) => sum(Object.values(model.errors)));
  const engines = servers.flatMap((server) => server.figures?.engines ?? []);
  const waiting = engines.length ? sum(engines, (engine) => engine.waiting_requests ?? 0) : null;
  const uses = engines.map((engine) => engine.kv_cache_usage_fraction).filter((use) => use !== null);
  byId("tiles").replaceChildren(
    tile("Running requests", amount(running), sparkLine(sumOfLines(models.map((model) => model.running)))),
    tile("Tokens/s", amount(Math.round(mean(tokens.slice(-SHORT)))), sparkLine(tokens)),
    tile("TTFT, median", duration(ttft(models, "ttft_p50_s")), `p99 ${duration(ttft(models, "ttft_p99_s"))}`),
    tile("Ended, last minute", amount(ended), failed ? `${failed} with an error` : "none with an error"),
    tile("Waiting in engines", waiting === null ? "–" : amount(waiting), waiting === null ? "not connected" : "for a place"),
    tile("KV cache, fullest", uses.length ? percent(Math.max(...uses)) : "–", uses.length ? "of its blocks" : "not told"),
  );
}

function tile(name, value, more) {
  const under = typeof more === "string" ? make("dd", { className: "small" }, more) : make("dd", { className: "small" }, more);
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), under);
}

/** Return a percentile over all models in milliseconds: that of the slowest one, for no more can be said. */
function ttft(models, name) {
  const known = models.map((model) => model[name]).filter((value) => value !== null);
  return known.length ? 1000 * Math.max(...known) : null;
}

function showModels({ models }) {
  byId("models-part").hidden = false;
  const rows = models.map((model) => [
    head(model.name),
    amount(model.running_requests),
    amount(Math.round(mean(model.tokens_per_s.slice(-SHORT)))),
    duration(model.ttft_p50_s === null ? null : 1000 * model.ttft_p50_s),
    duration(model.ttft_p99_s === null ? null : 1000 * model.ttft_p99_s),
    amount(model.ended_requests),
    words(listed(model.errors) || "none"),
    words(listed(model.releases) || "–"),
  ]);
  fill(byId("models"), ["Model", "Running", "Tokens/s", "TTFT p50", "TTFT p99", "Ended", ["Errors"], ["Answers by release"]], rows);
}

function showServers({ models, servers, connect_by: connectBy }) {
  const rows = servers.flatMap((server) => {
    const own = [head(server.url), state(server, models), make("td", {}, amount(server.running_requests))];
    if (server.figures === null) return [[...own, missing("not connected")]];
    if (server.figures.why_not) return [[...own, missing(server.figures.why_not)]];
    const { engines } = server.figures;
    if (!engines.length) return [[...own, missing("no engine tells anything")]];
    for (const cell of own) cell.setAttribute("rowspan", String(engines.length));
    return engines.map((engine, number) => [...(number ? [] : own), ...engineCells(engine)]);
  });
  fill(byId("servers"), ["Server", ["State"], "Our requests", ...ENGINE_COLUMNS], rows);
  byId("servers-note").textContent = servers.some((server) => server.figures === null)
    ? `Queue, KV cache and tokens of a server: start the gateway with ${connectBy.figures} HOST:PORT, once for each --url.`
    : "";
}

function state({ taking_requests_for: taken }, models) {
  if (taken.length === models.length) return words("takes requests", "good");
  return words(taken.length ? `takes requests for ${taken.join(", ")} alone` : "takes no requests", "bad");
}

function engineCells(engine) {
  const most = engine.max_running_requests === null ? "" : ` of ${amount(engine.max_running_requests)}`;
  const queued = listed(engine.queued);
  return [
    words(engine.model),
    engine.is_up ? String(engine.release) : `${engine.release}, down`,
    engine.running_requests === null ? "–" : amount(engine.running_requests) + most,
    amount(engine.waiting_requests) + (queued ? ` (${queued})` : ""),
    gauge(engine.kv_cache_usage_fraction),
    engine.tokens_per_s === null ? "–" : amount(Math.round(engine.tokens_per_s)),
  ];
}

function gauge(fraction) {
  const cell = make("td", {});
  if (fraction === null) {
    cell.append("–");
    return cell;
  }
  const bar = make("i", {});
  bar.style.width = `${100 * fraction}%`;
  cell.append(make("span", { className: "gauge", "aria-hidden": "true" }, bar), percent(fraction));
  return cell;
}

/** Fill a table; the name of a column of words is in an array. */
function fill(table, names, rows) {
  const header = names.map((name) => {
    const isWords = Array.isArray(name);
    return make("th", { scope: "col", className: isWords ? "words" : "" }, isWords ? name[0] : name);
  });
  const made = rows.map((cells) =>
    make("tr", {}, ...cells.map((cell) => (typeof cell === "string" ? make("td", {}, cell) : cell))),
  );
  table.replaceChildren(make("thead", {}, make("tr", {}, ...header)), make("tbody", {}, ...made));
}

function head(text) {
  return make("th", { scope: "row" }, text);
}

function words(text, className = "") {
  return make("td", { className: `words ${className}` }, text);
}

function missing(text) {
  return make("td", { className: "words missing", colspan: String(ENGINE_COLUMNS.length) }, text);
}

function listed(counts) {
  return Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${name}: ${amount(count)}`)
    .join(", ");
}

function percent(fraction) {
  return `${(100 * fraction).toFixed(fraction > 0 && fraction < 0.1 ? 1 : 0)} %`;
}

function sum(values, of = (value) => value) {
  return values.reduce((total, value) => total + of(value), 0);
}

function mean(values) {
  return values.length ? sum(values) / values.length : 0;
}

function sumOfLines(lines) {
  const longest = Math.max(0, ...lines.map((line) => line.length));
  return Array.from({ length: longest }, (_, at) => sum(lines, (line) => line[at] ?? 0));
}
