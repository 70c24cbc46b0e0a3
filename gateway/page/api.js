// SPDX-License-Identifier: Apache-2.0
/** The gateway's API: calls with the key of this tab, and errors as the API tells them. */

const PLACE = "trireme.key";

/** An answer that is an error, or none at all. */
export class ApiFailure extends Error {
  constructor(message, { code = "", status = 0, retryAfterS = null } = {}) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

let key = stored();

/** Return whether a key is in use. */
export function hasKey() {
  return key !== "";
}

/** Use a key from now on; "": none. Nothing but this tab knows it. */
export function useKey(given) {
  key = given;
  try {
    if (given) sessionStorage.setItem(PLACE, given);
    else sessionStorage.removeItem(PLACE);
  } catch {
    // A browser that keeps nothing has the key until the page is loaded again.
  }
}

/** Return the object at a path. Throws ApiFailure. */
export async function get(path, signal) {
  return (await call(path, { signal })).json();
}

/** Return the response to an object that is posted, its body unread. Throws ApiFailure. */
export function post(path, body, signal) {
  return call(path, { method: "POST", body: JSON.stringify(body), signal });
}

/** Return what an error object of the API says. */
export function failureOf(error, { status = 0, retryAfterS = null } = {}) {
  return new ApiFailure(String(error?.message ?? "the gateway gave no reason"), {
    code: String(error?.code ?? ""),
    status,
    retryAfterS,
  });
}

async function call(path, options) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure("the gateway does not answer; see whether it runs, and try again", { code: "no_answer" });
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  const seconds = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  throw failureOf(found.error ?? { message: `the gateway answered ${response.status}` }, {
    status: response.status,
    retryAfterS: Number.isFinite(seconds) ? seconds : null,
  });
}

function stored() {
  try {
    return sessionStorage.getItem(PLACE) ?? "";
  } catch {
    return "";
  }
}
