# SPDX-License-Identifier: Apache-2.0
"""The requests that a split sends to releases: each is answered by one release from its tokenizer to its text.

What a candidate cannot begin, for it is not there yet, has died, or refuses, the stable release answers. What it has
begun ends with it. Outcomes of the arms that are compared are written before the client has the last response; a
request that its client cancelled, or that no release would serve, says nothing of a release.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalWriter
from ensemble_configs.split.places import Places, place_of, stratum_of, unit_of
from ensemble_configs.split.release_split import ReleaseShare, ReleaseSplit
from serving.pipeline.late_refusal import refuse_late
from serving.pipeline.request_origin import RequestOrigin
from serving.pipeline.text_pipeline import TextPipeline
from serving.release_routing.lazy_pipeline import LazyPipeline
from serving.release_routing.split_key import key_of, tenant_of
from serving.release_routing.split_sink import AcceptedSink, SplitSink, TextEnd
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_outcome import OutcomeRecorder
from serving.telemetry.split_metrics import SplitMetrics
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.split")

_PROMPTS = ("text_input", "messages")
_MAX_WORD_CHARS = 64
_OF_THE_CLIENT = ("CANCELLED", "INVALID_ARG")
_NOT_AGAIN = ("CANCELLED", "DEADLINE")  # another release could not help


class SplitRequests:
    """The split requests of one adapter.

    Args:
        own: pipeline of the adapter's own release, which is the stable one.
        own_release: number of the own release.
        on_other: calls a function with the pipeline of another release, which leaves only after that; returns False,
            and calls nothing, where that pipeline would not take a request at once.
        name: name of the adapter, for its files in the journal.
        metrics: counters of the split.
    """

    def __init__(
        self,
        own: TextPipeline,
        own_release: int,
        on_other: Callable[[int, Callable[[LazyPipeline], None]], bool],
        *,
        name: str,
        metrics: SplitMetrics,
    ) -> None:
        self._own = own
        self._own_release = own_release
        self._with_other = on_other
        self._metrics = metrics
        self._places = Places()
        self._journal = _Journal(name)

    def start(
        self,
        split: ReleaseSplit,
        tensors: Tensors,
        sink: TensorSink,
        origin: RequestOrigin,
        parameters: Mapping[str, object],
    ) -> None:
        """Take one request as `TextPipeline.start` does, on the release that the split gives it.

        Raises:
            ServingError: the request is refused; `sink` was not called.
        """
        stratum = stratum_of(sum(len(item) for name in _PROMPTS for item in _texts(tensors, name)))
        key = key_of(split.key, tensors, parameters)
        share = split.share_at(place_of(key, split.hash_seed) if key else self._places.next(stratum))
        known = Outcome(
            arm=share.arm,
            stratum=stratum,
            unit=unit_of(key, split.hash_seed) if key else "",
            tenant=tenant_of(tensors)[:_MAX_WORD_CHARS],
        )
        request = _Request(tensors, sink, origin, OutcomeRecorder(known))
        self._metrics.note(share.release, share.arm)
        if share.release == self._own_release:
            self._on_own(split, share, request)
        elif not self._with_other(share.release, lambda other: self._on_other(split, share, request, other)):
            self._metrics.note_fallback(share.release, "not_ready")
            self._own.start(tensors, sink, origin)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
        self._metrics.close()

    def _on_own(self, split: ReleaseSplit, share: ReleaseShare, request: "_Request") -> None:
        if not share.arm:
            self._own.start(request.tensors, request.sink, request.origin)
            return

        def on_error(error: ServingError, has_begun: bool) -> bool:
            del has_begun
            if error.code not in _OF_THE_CLIENT:
                write(request.recorder.outcome(error=error.code))
            return False

        write = self._writer(split, self._own_release)
        sink = request.watched(write, on_error, is_accumulating=self._own.is_accumulating)
        try:
            self._own.start(request.tensors, sink, request.observed)
        except ServingError as exc:
            on_error(exc, False)
            raise

    def _on_other(self, split: ReleaseSplit, share: ReleaseShare, request: "_Request", other: LazyPipeline) -> None:
        release = share.release
        request.origin.observer.note_release(str(release))
        write = self._writer(split, release) if share.arm else _write_nothing

        def on_error(error: ServingError, has_begun: bool) -> bool:
            if error.code == "CANCELLED":
                return False
            outcome = request.recorder.outcome(error=error.code)
            if has_begun or error.code in _NOT_AGAIN:
                write(outcome)
                return False
            self._metrics.note_fallback(release, str(error.facts.get("reason", error.code.lower())))
            sink = request.sink
            if error.code == "INVALID_ARG":  # whose fault it is shows when the stable release takes it
                sink = AcceptedSink(sink, lambda: write(outcome))
            else:
                write(outcome)
            self._fall_back(request, sink)
            return True

        sink = request.watched(write, on_error, is_accumulating=other.is_accumulating)
        try:
            other.start(request.tensors, sink, request.observed)
        except ServingError as exc:
            if not on_error(exc, False):
                raise

    def _fall_back(self, request: "_Request", sink: TensorSink) -> None:
        request.origin.observer.note_release(str(self._own_release))
        try:
            self._own.start(request.tensors, sink, request.origin)
        except Exception as exc:  # its caller has other requests
            refuse_late(sink, exc, request.origin, waited_for="another release")

    def _writer(self, split: ReleaseSplit, release: int) -> Callable[[Outcome], None]:
        return lambda outcome: self._journal.write(split, release, outcome)


class _Request:
    def __init__(self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin, recorder: OutcomeRecorder) -> None:
        self.tensors = tensors
        self.sink = sink
        self.origin = origin
        self.recorder = recorder
        self.observed = origin._replace(observer=origin.observer.with_outcome(recorder))

    def watched(
        self,
        write: Callable[[Outcome], None],
        on_error: Callable[[ServingError, bool], bool],
        *,
        is_accumulating: bool,
    ) -> SplitSink:
        def on_answer(text: TextEnd) -> None:
            if not self.recorder.is_cancelled:
                write(self.recorder.outcome(is_empty=text.is_empty, is_looping=text.is_looping))

        return SplitSink(self.sink, is_accumulating=is_accumulating, on_answer=on_answer, on_error=on_error)


class _Journal:
    """The journal of the present rollout, for threads that write; a rollout has a folder of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._writer: JournalWriter | None = None
        self._folder = ""

    def write(self, split: ReleaseSplit, release: int, outcome: Outcome) -> None:
        with self._lock:
            if self._writer is None or self._folder != split.journal:
                self._close()
                self._writer, self._folder = JournalWriter(Path(split.journal), self._name), split.journal
            writer = self._writer
        try:
            writer.write(rollout=split.rollout, step=split.step, release=release, outcome=outcome)
        except OSError as exc:  # the request is answered all the same
            _log.error("an outcome could not be written: %s", exc)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _texts(tensors: Tensors, name: str) -> list[bytes]:
    return tensors[name].reshape(-1).tolist() if name in tensors else []


def _write_nothing(_: Outcome) -> None:
    """Drop the outcome of a share that is not compared."""
