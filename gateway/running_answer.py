# SPDX-License-Identifier: Apache-2.0
"""An answer that is being given: whoever counts requests is told of its begin and its end here, once each."""

import time

import msgspec

from clients.openai_api.answer_deltas import Piece
from clients.openai_api.asked import Endpoint
from gateway.access.caller import Caller
from gateway.allowances import Allowed
from gateway.gateway_metrics import GatewayMetrics
from gateway.ledger.counted_answer import CountedAnswer
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_row import LedgerRow
from gateway.live.recent_requests import RecentRequests
from gateway.request_watch import RequestWatch

CLIENT_GONE = "client_gone"  # in the metrics and the ledger
_ANSWERED_BY = "x-trireme-answered-by"
REQUEST_ID = "x-request-id"  # OpenAI's: its clients show it, and the ledger knows the request by it
_RELEASE = "x-trireme-release"
_KEPT, _SIMILAR = "exact-cache", "semantic-cache"  # no model or API has such a name
_SIMILARITY = "x-trireme-similarity"  # of a question that was taken for another one

# OpenTelemetry has no name for responses and messages: they are chats.
_OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.EMBEDDINGS: "embeddings",
}


class Observers:
    """The observers of each request.

    Args:
        ledger: None: none is kept.
        recent: has those of the last minute; None: nobody looks at them.
    """

    def __init__(
        self, metrics: GatewayMetrics, ledger: Ledger | None = None, recent: RecentRequests | None = None
    ) -> None:
        self.metrics, self.ledger, self.recent = metrics, ledger, recent or RecentRequests()


class RunningAnswer:
    """An answer that is being given.

    Args:
        allowed: what the answer has of the caller's limits.
    """

    def __init__(self, answer: CountedAnswer, caller: Caller, observers: Observers, allowed: Allowed) -> None:
        self._answer, self._observers, self._allowed = answer, observers, allowed
        self._watch = RequestWatch()
        self._row = LedgerRow(
            id=answer.id,
            begun_at_s=time.time(),
            key_id=caller.key_id,
            tenant=caller.tenant,
            endpoint=answer.endpoint,
            model=answer.model,
            tier=answer.tier,
        )
        observers.metrics.note_begin()
        observers.recent.begin(answer)
        self._entry = None if observers.ledger is None else observers.ledger.begin(self._row)

    def headers(self) -> dict[str, str]:
        """Return the headers: the id, the caller's limits, the release, and what answers in place of the model."""
        found = {REQUEST_ID: self._answer.id, **self._allowed.headers()}
        if self._answer.release is not None:
            found[_RELEASE] = str(self._answer.release)
        if self._answered_by:
            found[_ANSWERED_BY] = self._answered_by
        if self._answer.similarity is not None:
            found[_SIMILARITY] = f"{self._answer.similarity:.4f}"
        return found

    def note(self, piece: Piece) -> None:
        """Note a piece that goes to the caller now."""
        if piece.deltas:
            self._watch.note_text()

    def fail(self, code: str) -> None:
        """Note the error with which the answer ends."""
        self._watch.error = code

    def end(self) -> None:
        """Tell all of the end; called before the caller has the last byte, and again when all is over."""
        if self._watch.duration_s is not None:
            return
        self._watch.end()
        answer, metrics = self._answer, self._observers.metrics
        metrics.note_end(_OPERATIONS[answer.endpoint], answer.model, self._watch, answer.made)
        self._observers.recent.end(answer, error=self._watch.error, ttft_s=self._watch.ttft_s)
        if not self._watch.error:
            metrics.note_saved(self._answered_by if answer.is_kept else answer.tier, answer.saved_nano_usd())
        if not answer.is_kept and self._answered_by:
            metrics.note_fallback(answer.model, self._answered_by)
        if self._entry is not None:
            self._entry.end(self._ended_row())

    @property
    def _answered_by(self) -> str:
        """Return what answered in place of the model that was asked for; "": nothing did."""
        if self._answer.is_kept:
            return _KEPT if self._answer.similarity is None else _SIMILAR
        return "" if self._answer.answered_by == self._answer.model else self._answer.answered_by

    def _ended_row(self) -> LedgerRow:
        watch, answer, usage = self._watch, self._answer, self._answer.made
        return msgspec.structs.replace(
            self._row,
            answered_by=self._answered_by,
            release=answer.release,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_s=watch.ttft_s,
            duration_s=watch.duration_s,
            cost_nano_usd=answer.cost_nano_usd(usage),
            saved_nano_usd=0 if watch.error else answer.saved_nano_usd(),
            finish=watch.error or answer.finish_reason or "stop",
        )
