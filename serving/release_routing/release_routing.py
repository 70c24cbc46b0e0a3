# SPDX-License-Identifier: Apache-2.0
"""The releases that a text model serves: its own, one that a request names, and one that a split gives a request.

Release N is version N of every model and never changes. A request's parameter `release` names the release that gives it
tokenizer, engine and text; a request that names none goes where the split of the server says
(`ensemble_configs.split.release_split`). The first request for a release makes this process a client of the release's
engine.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.model_names import CANARY, prefix_of
from ensemble_configs.split.release_split import SplitFile
from serving.engine_process.engine_sources import SharedEngine, has_engine, named_engine
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.text_pipeline import TextPipeline
from serving.process.pinned_streams import is_pinned
from serving.process.run_dir import run_dir
from serving.release_routing.lazy_pipeline import LazyPipeline
from serving.release_routing.split_requests import SplitRequests
from serving.requests.request_parameters import RELEASE, Parameters, check_release, release_asked_for, with_scheduling
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.split_metrics import SplitMetrics
from trireme.base.errors import RequestError, ServingError, Unavailable

_log = logging.getLogger("trireme.release_routing")

_LOOK_S = 1.0
_SEEN_S = 0.1  # as long as a change of a split takes to be told


class ReleaseRouting:
    """The release routing of one adapter; one thread starts requests, and the own release is open from the start."""

    def __init__(self, folder: Path, metric_family: Any, *, step: str) -> None:
        """Open the adapter's own release.

        Args:
            folder: the model's version folder, named by its own release; the folders of other releases lie beside it.
            metric_family: `pb_utils.MetricFamily`.
            step: upstream's name of the model, without a prefix.

        Raises:
            ServingError: the own release cannot be loaded.
        """
        self._folder = folder
        self._metric_family = metric_family
        self._takes_named = step == "tensorrt_llm_bls"
        self._prefix = prefix_of(folder.parent.name, step)
        self._own = self._load(folder.name, SharedEngine(named_engine(self._prefix, folder.name)))
        self._others: dict[str, LazyPipeline] = {}
        self._loaded_s: dict[str, float] = {}  # when another release's engine was last seen
        self._leaving: dict[str, Unavailable] = {}  # releases that are being taken out
        self._refusal: Unavailable | None = None
        self._lock = threading.Lock()  # a request to another release is refused, or counted as running
        # A release on trial has a model of its own: whoever asks that means that release.
        self._split = None if folder.parent.name.endswith(CANARY) else SplitFile(run_dir(), self._prefix)
        self._split_requests = SplitRequests(
            self._own,
            int(folder.name),
            self._on_other,
            name=f"{folder.parent.name}-{folder.name}",
            metrics=SplitMetrics(metric_family, model=folder.parent.name, version=folder.name),
        )
        self._is_closed = threading.Event()
        threading.Thread(target=self._close_unloaded, name="unloaded-releases", daemon=True).start()

    def start(
        self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN, *, parameters: Parameters
    ) -> None:
        """Take one request as `TextPipeline.start` does, on the release that the request or the split names.

        Args:
            tensors: tensors by the names of the ensemble's inputs.
            sink: takes the responses.
            origin: origin of the request.
            parameters: parameters of the request.

        Raises:
            ServingError: the request is refused, or its release is not loaded; `sink` was not called.
        """
        version = release_asked_for(parameters)
        if not self._takes_named:
            check_release(parameters, self._folder.name)
        tensors = with_scheduling(tensors, parameters)
        split = None if self._split is None or version is not None else self._split.current()
        if split is not None and not is_pinned(origin.stream_name):
            self._split_requests.start(split, tensors, sink, origin, parameters)
        elif version is None or version == self._folder.name:
            self._own.start(tensors, sink, origin)
        else:
            with self._lock:
                if (refusal := self._leaving.get(version, self._refusal)) is not None:
                    raise refusal
                origin.observer.note_release(version)
                is_loaded = has_engine(self._engine(version))
                self._other(version, is_loaded=is_loaded).start(tensors, sink, origin)

    @property
    def num_running(self) -> int:
        """Return the number of requests, over all releases, that have not had their last response."""
        return sum(pipeline.num_running for pipeline in self._all())

    def num_running_on(self, version: str) -> int:
        """Return the number of requests on another release that have not had their last response."""
        other = self._others.get(version)
        return 0 if other is None else other.num_running

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on."""
        self._own.refuse_new(because)
        with self._lock:
            self._refusal = because

    def leave(self, version: str, because: Unavailable) -> None:
        """Send no new request to another release from now on; a request that names it is refused with `because`."""
        with self._lock:
            self._leaving[version] = because

    def cancel_all(self, because: ServingError) -> None:
        """End every running request with the error `because`."""
        for pipeline in self._all():
            pipeline.cancel_all(because)

    def cancel_on(self, version: str, because: ServingError) -> None:
        """End every running request on another release with the error `because`."""
        if (other := self._others.get(version)) is not None:
            other.cancel_all(because)

    def close(self) -> None:
        """Close the connection to every engine."""
        self._is_closed.set()
        self._split_requests.close()
        for pipeline in self._all():
            pipeline.close()

    def _all(self) -> list[TextPipeline | LazyPipeline]:
        return [self._own, *self._others.values()]

    def _load(self, version: str, source: SharedEngine) -> TextPipeline:
        folder = self._folder.parent / version
        # What `ensemble` gives a release on trial is counted where dashboards and alerts look for it.
        is_on_trial = not self._takes_named and version != self._folder.name
        model = f"{self._prefix}{CANARY}" if is_on_trial else folder.parent.name
        metrics = RequestMetrics(self._metric_family, model=model, version=version)
        is_accumulating = self._takes_named and load_release(folder).bls.accumulate_tokens
        return TextPipeline.from_release(folder, source, metrics, is_accumulating=is_accumulating)

    def _on_other(self, release: int, start: Callable[[LazyPipeline], None]) -> bool:
        """Start a request on another release, if that takes it at once; return whether it does."""
        version = str(release)
        with self._lock:  # until it is counted as running: a release that leaves waits for it
            if version in self._leaving or self._refusal is not None or not self._was_loaded(version):
                return False
            pipeline = self._other(version, is_loaded=True)
            if pipeline.is_open:
                start(pipeline)
            return pipeline.is_open

    def _was_loaded(self, version: str) -> bool:
        """Return whether a release's engine is there, or was a moment ago.

        Each look gives other threads the interpreter, and a request may wait for them: half a millisecond of TTFT on
        busy cores, which the stable release's requests do not wait.
        """
        now_s = time.monotonic()
        if now_s - self._loaded_s.get(version, -_SEEN_S) < _SEEN_S:
            return True
        is_loaded = has_engine(self._engine(version))
        if is_loaded:
            self._loaded_s[version] = now_s
        return is_loaded

    def _other(self, version: str, *, is_loaded: bool) -> LazyPipeline:
        """Return the pipeline of another release; open it where needed.

        Raises:
            RequestError: the server does not hold this release now.
        """
        known = self._others.get(version)
        engine = self._engine(version)
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

    def _engine(self, version: str) -> str:
        return named_engine(self._prefix, version)

    def _close_unloaded(self) -> None:
        """Close the pipelines of releases that were unloaded, which would look for their engines for ever."""
        while not self._is_closed.wait(_LOOK_S):
            with self._lock:
                gone = [version for version in self._others if not has_engine(self._engine(version))]
                pipelines = [self._others.pop(version) for version in gone]
                for version in [version for version in self._leaving if not has_engine(self._engine(version))]:
                    del self._leaving[version]  # it may be loaded anew
            for pipeline in pipelines:
                pipeline.close()
