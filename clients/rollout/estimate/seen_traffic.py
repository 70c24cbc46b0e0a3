# SPDX-License-Identifier: Apache-2.0
"""The traffic that a server has had, by its metrics: how many requests a second, and how much they differ.

A Prometheus tells it of the last day; without one the server's own metrics page does, of the time since it started.
"""

import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from scipy.special import ndtr

from clients.access import NO_ACCESS
from clients.tls_context import http_call
from ensemble_configs.spec.model_names import CANARY, PYTHON_MODELS
from trireme.base.durations import duration

DAY_S = 86_400.0
HISTOGRAMS = {
    "ttft": "trireme_time_to_first_token_seconds",
    "tpot": "trireme_time_per_output_token_seconds",
    "output_tokens": "nv_llm_output_token_len",
}
ENDS = "trireme_requests_total"
_ERROR, _CUT, _LEFT = "error", "length", "cancelled"
_TIMEOUT_S = 5.0
_LEAST_REQUESTS = 100

Floats = NDArray[np.float64]
Buckets = Mapping[float, float]  # by upper bound, how many are at most that


class Spread(NamedTuple):
    """The mean and the standard deviation of natural logarithms."""

    mean: float
    sd: float


@dataclass(frozen=True)
class SeenTraffic:
    """The requests of one model.

    Attributes:
        requests: number of requests that ended, without those that their clients left.
        seconds: time in which they ended.
        spreads: of each `log_mean` of the gate that the metrics tell of.
        shares: of the gate's events that the metrics tell of.
        source: the place that told, for people.
    """

    requests: float
    seconds: float
    spreads: Mapping[str, Spread]
    shares: Mapping[str, float]
    source: str

    @property
    def per_s(self) -> float:
        """Return the requests a second."""
        return self.requests / self.seconds


class Unknown(Exception):
    """Nothing can be said of the traffic; the message says why."""


def of_server(url: str, *, prefix: str, seconds: float, num_replicas: int = 1) -> SeenTraffic:
    """Return the traffic that a server's metrics page tells of.

    Args:
        url: of the page.
        prefix: before upstream's names in the names of the model's Triton models.
        seconds: since the server started.
        num_replicas: of the server; the page is one's, and the others are taken to be like it.

    Raises:
        Unknown: the page cannot be read, or there were too few requests.
    """
    text = _read(url).decode("utf-8", "replace")
    totals: dict[str, dict[str, float]] = {}
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as exc:
        raise Unknown(f"{url} holds no metrics ({exc})") from exc
    for sample in (sample for family in families for sample in family.samples):
        if sample.labels.get("model", "") in _models(prefix):
            key = sample.labels.get("le") or sample.labels.get("finish_reason") or ""
            of_name = totals.setdefault(sample.name, {})
            of_name[key] = of_name.get(key, 0.0) + float(sample.value)
    of_replicas = f", one of {num_replicas} replicas" if num_replicas > 1 else ""
    found = _traffic(lambda name: totals.get(name, {}), seconds, source=f"its {duration(seconds)} so far{of_replicas}")
    return replace(found, requests=found.requests * num_replicas)


def of_prometheus(url: str, *, prefix: str, match: str = "") -> SeenTraffic:
    """Return the traffic of the last day that a Prometheus tells of.

    Args:
        url: of the Prometheus, such as ``http://localhost:9090``.
        prefix: as of `of_server`.
        match: further label matchers, such as ``namespace="chat"``.

    Raises:
        Unknown: the Prometheus cannot be asked, or there were too few requests.
    """
    models = f'model=~"{"|".join(_models(prefix))}"' + (f",{match}" if match else "")

    def increase(name: str) -> dict[str, float]:
        by = "finish_reason" if name == ENDS else "le"
        found = _query(url, f"sum by ({by}) (increase({name}{{{models}}}[1d]))")
        return {str(one["metric"].get(by, "")): float(one["value"][1]) for one in found}

    return _traffic(increase, DAY_S, source="the last day")


def _traffic(total_of: Callable[[str], Mapping[str, float]], seconds: float, *, source: str) -> SeenTraffic:
    ends = {reason: count for reason, count in total_of(ENDS).items() if reason != _LEFT}
    requests = sum(ends.values())
    if requests < _LEAST_REQUESTS:
        raise Unknown(f"{requests:.0f} requests in {source} are too few to estimate a verdict from")
    spreads = {}
    for name, histogram in HISTOGRAMS.items():
        buckets = {float(bound): count for bound, count in total_of(f"{histogram}_bucket").items()}
        if (spread := spread_of(buckets)) is not None:
            spreads[name] = spread
    answered = requests - ends.get(_ERROR, 0.0)
    shares = {"errors": ends.get(_ERROR, 0.0) / requests, "cut": ends.get(_CUT, 0.0) / max(answered, 1.0)}
    return SeenTraffic(requests, seconds, spreads, shares, source)


def spread_of(buckets: Buckets) -> Spread | None:
    """Return the spread of what a histogram holds; None: it holds nothing.

    The likeliest normal distribution of logarithms, of which no more is known than the bucket of each: buckets are too
    wide for a mean of their middles.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  half a second of every `trireme rollout`, for this alone

    bounds = np.array(sorted(buckets))
    counts = np.diff([0.0, *np.maximum.accumulate([buckets[bound] for bound in bounds])])
    if not counts.sum():
        return None
    edges = np.log(np.concatenate([[1e-300], bounds]))  # infinite ones stay so

    def unlikeliness(parameters: Floats) -> float:
        mean, log_sd = parameters
        below = ndtr((edges - mean) / np.exp(log_sd))
        return -float((counts * np.log(np.maximum(np.diff(below), 1e-12))).sum())

    middle = edges[1 + int(np.argmax(counts.cumsum() >= counts.sum() / 2))]
    begin = np.array([middle if math.isfinite(middle) else edges[-2], math.log(0.5)])
    mean, log_sd = minimize(unlikeliness, begin, method="Nelder-Mead").x
    return Spread(float(mean), float(np.exp(log_sd)))


def _models(prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in (*PYTHON_MODELS, CANARY)]


def _query(url: str, query: str) -> list[dict[str, Any]]:
    raw = _read(f"{url.rstrip('/')}/api/v1/query?query={quote(query)}", told=url)
    try:
        found: list[dict[str, Any]] = json.loads(raw)["data"]["result"]
    except (ValueError, KeyError, TypeError) as exc:
        raise Unknown(f"{url} does not answer as a Prometheus does") from exc
    return found


def _read(url: str, *, told: str = "") -> bytes:
    """Return what is at a URL. Args: `told`: the URL in messages, where it is a shorter one."""
    told = told or url
    if not url.lower().startswith(("http://", "https://")):
        raise Unknown(f"{told!r} is no URL, such as http://localhost:9090")
    try:
        call = http_call(url, NO_ACCESS)
        with urllib.request.urlopen(call.request, timeout=_TIMEOUT_S, context=call.context) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as exc:
        with exc:
            raise Unknown(
                f"{told} answers HTTP {exc.code}: {exc.read(300).decode('utf-8', 'replace').strip()}"
            ) from exc
    except (OSError, ValueError, HTTPException) as exc:
        raise Unknown(f"{told} cannot be read ({exc})") from exc
