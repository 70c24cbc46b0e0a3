# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with any two engines: one drafts, the other verifies what it was sent beside the prompt.

For requests that ask for drafts (`num_draft_tokens`), round by round: the draft engine goes on from the output so far,
the target verifies that and adds a token of its own. Verified by ids, every token is one that the target chose, so the
text is the same as without. With `use_draft_logits` the target gets the drafts' logits too and weighs their
probabilities against its own, as it does with a client's `draft_logits`; greedy requests it verifies by ids all the
same. All other requests pass through.

Both engines are stepped by one loop. Upstream orchestrates rounds in a client of two models instead, which costs two
trips through the server for each, and streams nothing.
"""

import contextlib
import itertools
from collections.abc import Callable

import msgspec

from serving.engines.seam.base import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.capabilities import DISAGGREGATION_FIELDS, DRAFT_FIELDS
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.speculation import Speculation
from serving.engines.seam.wrapped_engine import WrappedEngine
from trireme.base.errors import RequestError, SpecError

# Far above the keys of the requests themselves.
_FIRST_ROUND_KEY = 1 << 62

# Each round is a request of its own, and these are of the whole one.
_OF_ONE_ROUND = ("beam_width", *DISAGGREGATION_FIELDS, *DRAFT_FIELDS)
_DEFAULTS = SamplingParams(max_tokens=1)


class SpeculatingEngine(WrappedEngine):
    """The target, to which a request may say `num_draft_tokens`.

    `is_ending` knows of requests without drafts alone, and need not know more: a round is short.
    """

    def __init__(self, target: Engine, draft: Engine) -> None:
        """Raises: SpecError: the target cannot verify drafts, or the two do not share a vocabulary."""
        _check_pair(target.info, draft.info)
        super().__init__(target, _info_of_pair(target.info, draft.info))
        self._target = target  # the engine inside
        self._draft = draft
        self._running: dict[int, Speculation] = {}  # by the request's key
        self._drafting: dict[int, Speculation] = {}  # by the round's, as below
        self._verifying: dict[int, Speculation] = {}
        self._round_keys = itertools.count(_FIRST_ROUND_KEY)
        # What each held in its last step, before the rounds that were over with it gave theirs back: the engines take
        # turns, and who looks every tenth of a second would see one of them idle for ever.
        self._num_target_blocks = 0
        self._num_draft_blocks = 0

    def add(self, request: GenerationRequest) -> None:
        """Queue a request, or the first draft of one."""
        if not request.sampling.num_draft_tokens:
            self._target.add(request)
            return
        refuse_unservable(request, self.info)
        _refuse_what_needs_one_round(request.sampling, self.info)
        speculation = Speculation(request)
        self._begin_round(speculation)
        self._running[request.key] = speculation

    def cancel(self, key: int) -> None:
        """Stop a request, whosever turn it is."""
        speculation = self._running.pop(key, None)
        if speculation is None:
            self._target.cancel(key)
        elif self._drafting.pop(speculation.round_key, None):
            self._draft.cancel(speculation.round_key)
        else:
            del self._verifying[speculation.round_key]
            self._target.cancel(speculation.round_key)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Of the rounds that are over; of other requests as the target's."""
        speculation = self._running.get(key)
        return speculation.perf if speculation else self._target.perf_of(key)

    def step(self) -> list[TokenChunk]:
        """One iteration of each engine."""
        drafts, verified = [], []
        if self._draft.has_work:
            drafts = self._draft.step()
            self._num_draft_blocks = self._draft.stats().num_used_kv_blocks or self._num_draft_blocks
        chunks = [self._take_draft(chunk) for chunk in drafts]
        if self._target.has_work:
            verified = self._target.step()
            self._num_target_blocks = self._target.stats().num_used_kv_blocks
        chunks += [self._take(chunk) for chunk in verified]
        return [chunk for chunk in chunks if chunk is not None]

    @property
    def has_work(self) -> bool:
        """Whether one of the two has."""
        return self._target.has_work or self._draft.has_work

    @property
    def progress(self) -> int | None:
        """Add up both: they take turns."""
        each = [engine.progress for engine in (self._target, self._draft)]
        known = [progress for progress in each if progress is not None]
        return sum(known) if known else None

    def stats(self) -> EngineStats:
        """The target's, where a request that is being drafted for runs too; and the draft engine's.

        Blocks are those of the engine's last step in which it had any, while it is the other's turn.
        """
        stats, draft = self._target.stats(), self._draft.stats()
        if self._drafting or any(speculation.draft_ids for speculation in self._verifying.values()):
            draft = msgspec.structs.replace(draft, num_used_kv_blocks=self._num_draft_blocks)
        return msgspec.structs.replace(
            stats,
            num_running=stats.num_running + len(self._drafting),
            num_used_kv_blocks=self._num_target_blocks if self.has_work else stats.num_used_kv_blocks,
            draft=draft,
        )

    def close(self) -> None:
        """Close both."""
        self._draft.close()
        self._target.close()

    def _begin_round(self, speculation: Speculation) -> None:
        """Raises: RequestError: the target refuses to go on."""
        speculation.begin_round(next(self._round_keys))
        if speculation.num_wanted_drafts:
            with contextlib.suppress(RequestError):  # too long for the draft engine, perhaps; the target goes on alone
                self._draft.add(_as_known_to(self._draft.info, speculation.draft_request()))
                self._drafting[speculation.round_key] = speculation
                return
        self._verify(speculation)

    def _verify(self, speculation: Speculation) -> None:
        self._target.add(speculation.target_request())
        self._verifying[speculation.round_key] = speculation

    def _take_draft(self, chunk: TokenChunk) -> TokenChunk | None:
        """Collect drafts; the error of a request that cannot go on, if it cannot."""
        speculation = self._drafting[chunk.key]
        speculation.note_drafts(chunk)
        if chunk.finish_reason is None and chunk.error is None:
            return None
        del self._drafting[chunk.key]
        return self._go_on(self._verify, speculation)

    def _take(self, chunk: TokenChunk) -> TokenChunk | None:
        """The chunk as its request's own. A round is over with its first tokens: the drafts come all at once."""
        speculation = self._verifying.get(chunk.key)
        if speculation is None:
            return chunk
        is_last = chunk.finish_reason is not None or chunk.error is not None
        if not is_last and not chunk.token_ids:
            return None
        del self._verifying[chunk.key]
        speculation.note_round(chunk.token_ids, chunk.perf if is_last else self._target.perf_of(chunk.key))
        if is_last:
            del self._running[speculation.request.key]
        else:
            self._target.cancel(chunk.key)
            if refusal := self._go_on(self._begin_round, speculation):
                chunk.error = refusal.error
        chunk.key, chunk.perf = speculation.request.key, speculation.perf if is_last else None
        return chunk

    def _go_on(self, begin: Callable[[Speculation], None], speculation: Speculation) -> TokenChunk | None:
        """Begin what is next; the last chunk of the request if that is refused."""
        try:
            begin(speculation)
        except RequestError as exc:
            del self._running[speculation.request.key]
            return TokenChunk(speculation.request.key, [], error=str(exc))
        return None


def _refuse_what_needs_one_round(sampling: SamplingParams, info: EngineInfo) -> None:
    for field in _OF_ONE_ROUND:
        value = getattr(sampling, field)
        if field == "draft_acceptance_threshold" and sampling.use_draft_logits:
            continue  # the same in each round
        if value != getattr(_DEFAULTS, field):
            raise RequestError(
                f"{field} does not go with num_draft_tokens ({sampling.num_draft_tokens}); leave one of them out",
                field=field,
                provider=info.provider,
            )


def _info_of_pair(target: EngineInfo, draft: EngineInfo) -> EngineInfo:
    """The target's, with what the draft engine adds, or why it does not."""
    supported, why_not = target.supported | {"num_draft_tokens"}, dict(target.why_not)
    if "draft_logits" not in target.supported:
        why_not["use_draft_logits"] = target.why_not.get("draft_logits", "it verifies drafts by their ids")
    elif "return_generation_logits" not in draft.supported:
        reason = draft.why_not.get("return_generation_logits", "leave it out")
        why_not["use_draft_logits"] = f"its draft_engine ({draft.provider}) gives no logits: {reason}"
    else:
        supported |= {"use_draft_logits"}
    return msgspec.structs.replace(
        target, supported=supported, why_not={name: why_not[name] for name in why_not.keys() - supported}
    )


def _as_known_to(info: EngineInfo, request: GenerationRequest) -> GenerationRequest:
    """The request without what the engine does not honour: a draft may be wrong."""
    fields = (name for name in SamplingParams.__struct_fields__ if name in info.supported)
    sampling = SamplingParams(**{name: getattr(request.sampling, name) for name in fields})
    return msgspec.structs.replace(request, sampling=sampling)


def _check_pair(target: EngineInfo, draft: EngineInfo) -> None:
    if "draft_input_ids" not in target.supported:
        reason = target.why_not.get("draft_input_ids", "it verifies no drafts from outside")
        raise SpecError(f"draft_engine cannot draft for provider {target.provider!r}: {reason}", field="draft_engine")
    if draft.vocab_size != target.vocab_size:
        raise SpecError(
            f"draft_engine has {draft.vocab_size} tokens and the engine {target.vocab_size}; "
            "drafts need the same tokenizer",
            field="draft_engine",
            value=draft.vocab_size,
        )
