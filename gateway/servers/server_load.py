# SPDX-License-Identifier: Apache-2.0
"""The load of servers: what they tell of themselves, with what this gateway has sent there since.

A server's figures hold the requests of everybody who asks it. What is left of them without this gateway's own is what
others have there; the own ones are known at any moment.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

_SAMPLE = re.compile(
    rb"^trireme_(engine_up|requests_running|requests_waiting|kv_cache_usage_fraction)\{([^}\n]*)\} (\S+)$", re.MULTILINE
)
_MODEL, _VERSION = re.compile(rb'\bmodel="([^"]*)"'), re.compile(rb'\bversion="([^"]*)"')
_ENGINE = "tensorrt_llm"
# The requests of others count as far as they are more than this share, and some, beyond the fewest that others have at
# a server. Below it they are chance, and every gateway that saw them would go to the same server until it looks again.
_MORE_SHARE, _MORE_REQUESTS = 0.5, 4


class EngineLoad(NamedTuple):
    """The load of an engine, of all its releases together.

    Attributes:
        running: requests in the batch.
        waiting: requests that wait to enter it, in the engine or for admission.
        queue: of these, as many as have waited at two looks in a row: the others may have waited for a step's end.
        kv_usage: used share of the KV cache, of the fullest release.
    """

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    queue: float = 0.0

    def after(self, before: "Mapping[str, EngineLoad] | None", name: str) -> "EngineLoad":
        """Return the load with its queue, by the look before; None: there was none."""
        waited = self.waiting if before is None else before.get(name, EngineLoad()).waiting
        return self._replace(queue=min(self.waiting, waited))


class LoadFigures(NamedTuple):
    """The figures of a server.

    Attributes:
        at_s: when the server was asked for them.
        num_own: requests of this gateway there at that moment.
        engines: load of each, by its name at Triton.
    """

    at_s: float
    num_own: int
    engines: Mapping[str, EngineLoad]

    @property
    def num_of_others(self) -> float:
        """Return how many requests others had there: those that the server told of, without this gateway's."""
        told = sum(engine.running + engine.waiting for engine in self.engines.values())
        return max(0.0, told - self.num_own)


class Load(NamedTuple):
    """The load of a server, as a choice compares it with that of others.

    Attributes:
        requests: that run or wait there: this gateway's, and those of others as far as they are many more than
            elsewhere.
        queue: requests that wait for the model that is asked.
        kv_usage: used share of that model's KV cache.
    """

    requests: float
    queue: float = 0.0
    kv_usage: float = 0.0


class Loaded(Protocol):
    """A server, as far as its load is concerned."""

    num_running: int

    @property
    def figures(self) -> LoadFigures | None:
        """Return the server's figures; None: they are unknown, or too old."""
        ...


def engine_of(triton_model: str) -> str:
    """Return Triton's name of the engine behind a model from text to text."""
    step = "ensemble" if triton_model.endswith("ensemble") else "tensorrt_llm_bls"
    return triton_model.removesuffix(step) + _ENGINE


def loads_of(servers: Sequence[Loaded], model: str = "") -> list[Load]:
    """Return the load of each server.

    A server whose figures are unknown counts as the others do on average: it is neither flooded nor left idle. Where
    none is known, the requests of this gateway are all that counts.

    Args:
        model: Triton's name of the model that is asked.
    """
    engine = engine_of(model)
    found = [server.figures for server in servers]
    known = [figures for figures in found if figures is not None]
    if not known:
        return [Load(server.num_running) for server in servers]
    told = [figures.engines.get(engine, EngineLoad()) for figures in known]
    others = sum(figures.num_of_others for figures in known) / len(known)
    queue = sum(each.queue for each in told) / len(told)
    usual = min(figures.num_of_others for figures in known) * (1 + _MORE_SHARE) + _MORE_REQUESTS
    loads = []
    for server, figures in zip(servers, found, strict=True):
        if figures is None:
            loads.append(Load(server.num_running + max(0.0, others - usual), queue))
            continue
        own = figures.engines.get(engine, EngineLoad())
        more = max(0.0, figures.num_of_others - usual)
        loads.append(Load(server.num_running + more, own.queue, own.kv_usage))
    return loads


def engines_on(page: bytes) -> dict[str, EngineLoad]:
    """Return the load of each engine that a page of metrics tells of, by its name at Triton.

    Releases that have gone may stay on a page, without `trireme_engine_up`; they count for nothing.

    Raises:
        ValueError: a figure is no number.
    """
    releases: dict[tuple[bytes, bytes], dict[bytes, float]] = {}
    for name, labels, value in _SAMPLE.findall(page):
        model, version = _MODEL.search(labels), _VERSION.search(labels)
        if model is not None and version is not None:
            releases.setdefault((model[1], version[1]), {})[name] = _number(value)
    engines: dict[str, EngineLoad] = {}
    for (model_name, _), told in releases.items():
        if b"engine_up" not in told:
            continue
        name, before = model_name.decode(), engines.get(model_name.decode(), EngineLoad())
        engines[name] = EngineLoad(
            before.running + told.get(b"requests_running", 0.0),
            before.waiting + told.get(b"requests_waiting", 0.0),
            max(before.kv_usage, told.get(b"kv_cache_usage_fraction", 0.0)),
        )
    return engines


def _number(text: bytes) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text.decode()} is no number of requests or blocks")
    return number
