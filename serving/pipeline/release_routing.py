# SPDX-License-Identifier: Apache-2.0
"""The releases that `tensorrt_llm_bls` serves: its own, and by request any other release that the server holds.

A request's parameter `release` names the release that gives it tokenizer, engine and text. Release N is version N of
every model and never changes. The first request for a release makes this stub a client of the release's engine.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.model_names import prefix_of
from serving.engine_process.engine_sources import SharedEngine, has_engine, named_engine
from serving.pipeline.late_refusal import error_for_client, fail_quietly, refuse_late
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.text_pipeline import TextPipeline
from serving.requests.request_parameters import RELEASE, Parameters, release_asked_for, with_scheduling
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_metrics import RequestMetrics
from trireme.base.errors import RequestError, ServingError, Unavailable

_log = logging.getLogger("trireme.release_routing")


class LazyPipeline:
    """A `TextPipeline` that a thread of its own opens, while the first requests wait; they fail if it cannot be opened.

    To load a tokenizer takes a good part of a second, and an engine may still be loading: requests to other releases
    do not wait for it.

    Args:
        load: opens the pipeline; called once, on the new thread.
        give_up: makes `load` return at once, with an error.
    """

    def __init__(self, load: Callable[[], TextPipeline], *, give_up: Callable[[], None]) -> None:
        self._load = load
        self._give_up = give_up
        self._pipeline: TextPipeline | None = None
        self._failure: ServingError | None = None
        self._waiting: list[tuple[Tensors, TensorSink, RequestOrigin]] = []
        self._lock = threading.Lock()  # of the fields above: a request waits, or finds the pipeline or the failure
        self._opener = threading.Thread(target=self._open, name="open-release", daemon=True)
        self._opener.start()

    @property
    def has_failed(self) -> bool:
        """Return whether the pipeline could not be opened; a new pipeline may succeed."""
        return self._failure is not None

    def start(self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN) -> None:
        """Take one request as `TextPipeline.start` does; a request that has to wait is refused through its sink.

        Raises:
            ServingError: the request is refused, or the pipeline could not be opened; `sink` was not called.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._pipeline is None:
                self._waiting.append((tensors, sink, origin))
                return
        self._pipeline.start(tensors, sink, origin)

    @property
    def num_running(self) -> int:
        """Return the number of requests that wait or run."""
        with self._lock:
            return len(self._waiting) + (self._pipeline.num_running if self._pipeline else 0)

    def cancel_all(self, because: ServingError) -> None:
        """End every request that waits or runs with the error `because`."""
        with self._lock:
            self._fail_waiting(because)
        if self._pipeline is not None:
            self._pipeline.cancel_all(because)

    def close(self) -> None:
        """Hang up on the engine, or stop waiting for it."""
        self._give_up()
        self._opener.join()
        if self._pipeline is not None:
            self._pipeline.close()

    def _open(self) -> None:
        try:
            pipeline = self._load()
        except Exception as exc:  # waiting requests would wait for ever
            with self._lock:
                self._failure = error_for_client(exc, "unexpected error while a release was opened", log=_log)
                self._fail_waiting(self._failure)
            return
        with self._lock:
            self._pipeline = pipeline
            for tensors, sink, origin in self._waiting:
                try:
                    pipeline.start(tensors, sink, origin)
                except Exception as exc:  # one bad request must not end those behind it
                    refuse_late(sink, exc, origin, waited_for="a release")
            self._waiting.clear()

    def _fail_waiting(self, error: ServingError) -> None:
        for _, sink, *_ in self._waiting:
            fail_quietly(sink, error)
        self._waiting.clear()


class ReleaseRouting:
    """The release routing of one adapter; one thread starts requests, and the own release is open from the start."""

    def __init__(self, folder: Path, metric_family: Any) -> None:
        """Open the adapter's own release.

        Args:
            folder: the model's version folder, named by its own release; the folders of other releases lie beside it.
            metric_family: `pb_utils.MetricFamily`.

        Raises:
            ServingError: the own release cannot be loaded.
        """
        self._folder = folder
        self._metric_family = metric_family
        self._prefix = prefix_of(folder.parent.name, "tensorrt_llm_bls")
        self._own = self._load(folder.name, SharedEngine(named_engine(self._prefix, folder.name)))
        self._others: dict[str, LazyPipeline] = {}
        self._refusal: Unavailable | None = None
        self._lock = threading.Lock()  # a request to another release is refused, or counted as running

    def start(
        self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN, *, parameters: Parameters
    ) -> None:
        """Take one request as `TextPipeline.start` does, on the release that the request names.

        Args:
            tensors: tensors by the names of the ensemble's inputs.
            sink: takes the responses.
            origin: origin of the request.
            parameters: parameters of the request.

        Raises:
            ServingError: the request is refused, or its release is not loaded; `sink` was not called.
        """
        version = release_asked_for(parameters)
        tensors = with_scheduling(tensors, parameters)
        if version is None or version == self._folder.name:
            self._own.start(tensors, sink, origin)
            return
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            origin.observer.note_release(version)
            self._other(version).start(tensors, sink, origin)

    @property
    def num_running(self) -> int:
        """Return the number of requests, over all releases, that have not had their last response."""
        return sum(pipeline.num_running for pipeline in self._all())

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on."""
        self._own.refuse_new(because)
        with self._lock:
            self._refusal = because

    def cancel_all(self, because: ServingError) -> None:
        """End every running request with the error `because`."""
        for pipeline in self._all():
            pipeline.cancel_all(because)

    def close(self) -> None:
        """Close the connection to every engine."""
        for pipeline in self._all():
            pipeline.close()

    def _all(self) -> list[TextPipeline | LazyPipeline]:
        return [self._own, *self._others.values()]

    def _load(self, version: str, source: SharedEngine) -> TextPipeline:
        folder = self._folder.parent / version
        metrics = RequestMetrics(self._metric_family, model=folder.parent.name, version=version)
        is_accumulating = load_release(folder).bls.accumulate_tokens
        return TextPipeline.from_release(folder, source, metrics, is_accumulating=is_accumulating)

    def _other(self, version: str) -> LazyPipeline:
        """Return the pipeline of another release; open it where needed.

        Raises:
            RequestError: the server does not hold this release now.
        """
        known = self._others.get(version)
        engine = named_engine(self._prefix, version)
        is_loaded = has_engine(engine)
        if known is not None and (known.has_failed or not is_loaded):
            self._others.pop(version).close()
            known = None
        if not is_loaded:
            raise RequestError(
                f"release {version} is not loaded here; leave it out, or load version {version} of the models",
                field=RELEASE,
                value=version,
            )
        if known is None:
            source = SharedEngine(engine)
            known = self._others[version] = LazyPipeline(lambda: self._load(version, source), give_up=source.close)
        return known
