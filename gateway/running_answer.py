# SPDX-License-Identifier: Apache-2.0
"""An answer that is being given: whoever counts requests is told of its begin and its end here, once each."""

import time

import msgspec

from clients.openai_api.answer_deltas import AnswerDeltas, Piece
from clients.openai_api.asked import Asked, Endpoint
from gateway.access.caller import Caller
from gateway.allowances import Allowed
from gateway.gateway_metrics import GatewayMetrics
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_row import LedgerRow
from gateway.request_watch import RequestWatch
from gateway.served_models import ServedModel

CLIENT_GONE = "client_gone"  # in the metrics and the ledger

# OpenTelemetry has no name for responses: they are chats.
_OPERATIONS = {Endpoint.CHAT: "chat", Endpoint.COMPLETIONS: "text_completion", Endpoint.RESPONSES: "chat"}


class Observers:
    """The observers of each request.

    Args:
        ledger: None: none is kept.
    """

    def __init__(self, metrics: GatewayMetrics, ledger: Ledger | None = None) -> None:
        self.metrics, self.ledger = metrics, ledger


class RunningAnswer:
    """An answer that is being given.

    Args:
        answer_id: without the prefix of its kind.
        deltas: read the chunks, and know what they took.
        allowed: what the answer has of the caller's limits.
    """

    def __init__(
        self,
        answer_id: str,
        asked: Asked,
        model: ServedModel,
        deltas: AnswerDeltas,
        caller: Caller,
        observers: Observers,
        allowed: Allowed,
    ) -> None:
        self._allowed = allowed
        self._endpoint, self._model, self._deltas, self._observers = asked.endpoint, model, deltas, observers
        self._watch = RequestWatch()
        self._row = LedgerRow(
            id=answer_id,
            begun_at_s=time.time(),
            key_id=caller.key_id,
            tenant=caller.tenant,
            endpoint=asked.endpoint,
            model=model.name,
        )
        observers.metrics.note_begin()
        self._entry = None if observers.ledger is None else observers.ledger.begin(self._row)

    def headers(self) -> dict[str, str]:
        """Return the headers about the caller's limits."""
        return self._allowed.headers()

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
        usage = self._deltas.usage
        self._observers.metrics.note_end(_OPERATIONS[self._endpoint], self._model.name, self._watch, usage)
        if self._entry is not None:
            self._entry.end(self._ended_row())

    def _ended_row(self) -> LedgerRow:
        row, watch, deltas, usage = self._row, self._watch, self._deltas, self._deltas.usage
        return msgspec.structs.replace(
            row,
            release=deltas.release,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_s=watch.ttft_s,
            duration_s=watch.duration_s,
            cost_nano_usd=self._model.cost_nano_usd(usage),
            finish=watch.error or deltas.finish_reason or "stop",
        )
