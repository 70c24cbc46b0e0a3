# SPDX-License-Identifier: Apache-2.0
"""The figures that servers tell of themselves, on the page of metrics of each: queue, KV cache, tokens."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from clients.access import Access
from clients.load_run.server_samples import read_metrics
from gateway.served_models import ServedModel
from gateway.servers.server_load import engine_of
from trireme.base.errors import RequestError, ServingError, SpecError
from trireme.base.server_names import is_server_name, read_server_name

METRICS_OPTION = "--metrics-url"
_FRESH_S = 1.0  # whoever looks within it sees the same
_SAMPLE = re.compile(r"(\w+)\{(.*)\}")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class EngineFigures(msgspec.Struct, frozen=True):
    """The figures of one release's engine; what it does not tell is None.

    Attributes:
        model: by its name in the deployment.
        tokens_per_s: since the last look; None: it is the first one.
        queued: requests that wait for admission, by class.
    """

    model: str
    release: int
    is_up: bool
    running_requests: float | None
    waiting_requests: float | None
    max_running_requests: float | None
    kv_cache_usage_fraction: float | None
    tokens_per_s: float | None
    queued: dict[str, float]


class ServerFigures(msgspec.Struct, frozen=True):
    """The figures of one server.

    Attributes:
        why_not: why there are none; "": they are there.
        splits: requests that the server's split gave each release, since it started.
    """

    why_not: str
    engines: list[EngineFigures] = []
    splits: dict[int, float] = {}


class _Page(NamedTuple):
    at_s: float
    values: Mapping[str, float]


class MetricsPage:
    """The page of metrics of one server.

    Args:
        access: certificates and the key, for a page over https.
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        url: str,
        models: Iterable[ServedModel],
        access: Access,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._access, self._now_s = url, access, now_s
        self._names = {engine_of(model.triton_model): model.name for model in models}
        self._lock = asyncio.Lock()
        self._last, self._shown, self._read_s = _Page(0.0, {}), ServerFigures("it was not read yet"), -_FRESH_S

    async def figures(self) -> ServerFigures:
        """Return the figures, at most a second old."""
        async with self._lock:  # who looks meanwhile waits for the same page
            if self._now_s() - self._read_s >= _FRESH_S:
                self._shown = await self._read()
                self._read_s = self._now_s()
        return self._shown

    async def _read(self) -> ServerFigures:
        try:
            values = await asyncio.to_thread(read_metrics, self._url, self._access)
        except (OSError, ValueError) as exc:
            self._last = _Page(0.0, {})
            why = getattr(exc, "reason", exc)  # urllib's errors hold what went wrong
            return ServerFigures(f"{self._url}: {getattr(why, 'strerror', None) or why}")
        except ServingError as exc:
            self._last = _Page(0.0, {})
            return ServerFigures(exc.message)
        before, self._last = self._last, _Page(self._now_s(), values)
        return figures_of(values, self._names, before=before.values, seconds=self._last.at_s - before.at_s)


def figures_of(
    values: Mapping[str, float], names: Mapping[str, str], *, before: Mapping[str, float], seconds: float
) -> ServerFigures:
    """Return the figures of a page of metrics.

    Args:
        values: by ``name{label="value",...}``.
        names: of the models, by those of their engines at Triton.
        before: the page of a while ago; empty: there was none.
        seconds: between both.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    queued: dict[tuple[str, int], dict[str, float]] = {}
    splits: dict[int, float] = {}
    made = "trireme_engine_output_tokens_total"
    for key, value in values.items():
        match = _SAMPLE.fullmatch(key)
        if match is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[2]))
        if name == "trireme_split_requests_total" and labels.get("release", "").isdigit():
            release = int(labels["release"])
            splits[release] = splits.get(release, 0.0) + value
        if labels.get("model") not in names or not labels.get("version", "").isdigit():
            continue
        engine = (labels["model"], int(labels["version"]))
        if name == "trireme_queue_requests":
            queued.setdefault(engine, {})[labels.get("class", "")] = value
            continue
        told = found.setdefault(engine, {})
        told[name] = value
        if name == made and key in before and seconds > 0:
            told["tokens_per_s"] = max(0.0, value - before[key]) / seconds  # a server that was started anew counts anew
    engines = [
        EngineFigures(
            model=names[model],
            release=release,
            is_up=told.get("trireme_engine_up") == 1,
            running_requests=told.get("trireme_requests_running"),
            waiting_requests=told.get("trireme_requests_waiting"),
            max_running_requests=told.get("trireme_engine_max_num_seqs"),
            kv_cache_usage_fraction=told.get("trireme_kv_cache_usage_fraction"),
            tokens_per_s=told.get("tokens_per_s"),
            queued=queued.get((model, release), {}),
        )
        for (model, release), told in sorted(found.items())
        if "trireme_engine_up" in told  # the metrics of a release that has gone may stay
    ]
    return ServerFigures("", engines, splits)


def page_addresses(given: Sequence[str], urls: Sequence[str]) -> dict[str, str]:
    """Return the addresses of the pages of metrics by the URLs of the servers; empty: none are given.

    Servers that come and go under a name have a URL of that name, with the port of their pages.

    Raises:
        SpecError: they are not as many as there are servers, one is no address, or it is not of the same name.
    """
    if given and len(given) != len(urls):
        raise SpecError(
            f"{METRICS_OPTION} is given {len(given)} times for {len(urls)} servers; give it once for each --url, in "
            "the same order, or not at all",
            field="metrics_url",
        )
    return {url: _address_for(url, place) for url, place in zip(urls, given, strict=False)}  # none, or as many


def _address_for(url: str, given: str) -> str:
    if not is_server_name(url) and not is_server_name(given):
        return _address(given)
    if is_server_name(url):
        host = read_server_name(url).host
        with contextlib.suppress(RequestError):
            place = read_server_name(given)
            if place.host == host and not place.is_tls:
                return given
        raise SpecError(
            f"{METRICS_OPTION} {given!r} is not of the same servers as --url {url}, which come and go by the name "
            f"{host}; write dns:///{host}:PORT with the port of their pages, such as 8002",
            field="metrics_url",
            value=given,
        )
    raise SpecError(
        f"{METRICS_OPTION} {given!r} stands for servers that come and go, and --url {url} is one server; write "
        "host:port of its page",
        field="metrics_url",
        value=given,
    )


def _address(given: str) -> str:
    url = given if "://" in given else f"http://{given}/metrics"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        is_address = is_address and ("://" in given or parts.port is not None)
    except ValueError:
        is_address = False
    if not is_address or any(char.isspace() for char in url):
        raise SpecError(
            f"{METRICS_OPTION} {given!r} is no address of a page of metrics; write host:port, as in localhost:8002, or "
            "http://localhost:8002/metrics",
            field="metrics_url",
            value=given,
        )
    return url
