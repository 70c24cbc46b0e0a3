// SPDX-License-Identifier: Apache-2.0
/** The state of the rollout that goes on, or of the last one. */

import { amount } from "./answer_figures.js";
import { make } from "./elements.js";

/** Show it in a place. */
export function showRollout(place, { rollouts, servers, connect_by: connectBy }) {
  if (rollouts === null) {
    const how = `Not connected: start the gateway with ${connectBy.rollouts} STORE, the store of trireme rollout.`;
    place.replaceChildren(make("p", { className: "hint" }, how));
    return;
  }
  if (rollouts.why_not) {
    place.replaceChildren(make("p", { className: "failure" }, rollouts.why_not));
    return;
  }
  if (rollouts.rollout === null) {
    place.replaceChildren(make("p", { className: "hint" }, "There was none yet: trireme rollout start RELEASE begins one."));
    return;
  }
  const { rollout } = rollouts;
  const shown = [facts(rollout, servers)];
  if (rollout.shares.length) shown.unshift(steps(rollout));
  place.replaceChildren(...shown);
}

function steps({ shares, step, is_over: isOver }) {
  const items = shares.map((share, number) => {
    const item = make("li", {}, percent(share));
    if (number === step && !isOver) item.setAttribute("aria-current", "step");
    return item;
  });
  return make("ol", { className: "steps", "aria-label": "Shares of the candidate, one after the other" }, ...items);
}

function facts(rollout, servers) {
  const rows = [
    ["Rollout", `${rollout.id}, ${rollout.mode} of ${rollout.model}`],
    ["State", `${rollout.phase.replaceAll("_", " ")} since ${clock(rollout.phase_since)}`],
    ["Releases", releases(rollout)],
    ["Reason", rollout.reason],
    ["Gate", `${rollout.verdict}: ${rollout.judgement}`],
    ["Evidence", `${amount(rollout.judged_requests)} requests of each arm; ${amount(rollout.step_requests)} for a step`],
    ["Split so far", splits(servers)],
  ];
  const list = make("dl", { className: "facts" });
  for (const [name, text] of rows) {
    if (text) list.append(make("dt", {}, name), make("dd", {}, text));
  }
  if (!rollout.is_driven && !rollout.is_over) {
    const what = "Nobody drives it now, and all requests go to the stable release: trireme rollout run goes on with it.";
    list.append(make("dt", {}, "Process"), make("dd", { className: "bad" }, what));
  }
  return list;
}

function releases({ stable, candidates, share, arms, mode }) {
  if (mode === "ab") {
    return Object.entries(arms).map(([arm, part]) => `${arm} ${percent(part)}`).join(", ");
  }
  const gets = mode === "shadow" ? "copies of" : "gets";
  return `${candidates.join(", ")} ${gets} ${percent(share)} of the requests, beside ${stable}`;
}

/** Return how many requests the servers' splits gave each release since they started. */
function splits(servers) {
  const counts = {};
  for (const { figures } of servers) {
    for (const [release, count] of Object.entries(figures?.splits ?? {})) counts[release] = (counts[release] ?? 0) + count;
  }
  return Object.entries(counts).map(([release, count]) => `release ${release}: ${amount(count)}`).join(", ");
}

function percent(share) {
  return `${Number((100 * share).toFixed(2))} %`;
}

function clock(seconds) {
  return new Date(1000 * seconds).toLocaleString();
}
