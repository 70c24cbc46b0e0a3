# SPDX-License-Identifier: Apache-2.0
"""The output that a request has made since it was last looked at, read from TensorRT-LLM's, which grows in place."""

import asyncio
import math
import time
from dataclasses import dataclass, field

from serving.engines.seam.base import Beam, ExtraOutputs, FinishReason, PerfMetrics, SamplingParams
from serving.engines.seam.packed_array import PackedArray
from serving.engines.tensorrt_llm.trtllm_call_parts import comes_at_once, context_phase_of
from serving.engines.tensorrt_llm.trtllm_perf import RequestPerfMetrics, read_perf_metrics
from serving.engines.tensorrt_llm.trtllm_upstream import Completion, Result, Tensor
from trireme.base.errors import ServerError

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class UnreadableOutput(ServerError):
    """The error of an output without something that was asked for; its request fails alone."""


@dataclass(slots=True)
class NewOutput:
    """The news of one request; the last has a finish reason or an error."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    perf: PerfMetrics | None = None
    extras: ExtraOutputs | None = None
    is_over: bool = True  # with an error: upstream has ended it, too

    @property
    def is_last(self) -> bool:
        """Return whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that upstream has."""

    key: int
    end_ids: tuple[int, ...]
    sampling: SamplingParams
    vocab_size: int | None = None  # logits are cut to it: an engine pads them; None: as they come
    number: int = 0  # in the order in which upstream got them
    result: Result | None = None
    following: "asyncio.Task[None] | None" = None
    num_tokens: int = 0  # output tokens that have been read
    is_cancelled: bool = False
    is_unreadable: bool = False  # what upstream still makes for the request is dropped
    metrics: RequestPerfMetrics | None = None  # with its last output
    last_token_time_ns: int = 0

    @property
    def perf(self) -> PerfMetrics | None:
        """Return the metrics of the request so far."""
        if self.metrics is None:
            return None
        return read_perf_metrics(self.metrics, last_token_time_ns=self.last_token_time_ns)

    def read(self, result: Result) -> NewOutput | None:
        """Return what has come since the last call; None: nothing.

        A request whose output cannot be read ends with an error; what upstream still makes of it is dropped.
        """
        if self.is_unreadable:
            return NewOutput(error="dropped") if result.finished else None
        try:
            return self._read(result)
        except UnreadableOutput as exc:
            self.is_unreadable = True
            return NewOutput(error=str(exc), is_over=result.finished)

    def _read(self, result: Result) -> NewOutput | None:
        output = result.outputs[0]
        new = NewOutput(output.token_ids[self.num_tokens :])
        self.num_tokens += len(new.token_ids)
        self.metrics, self.last_token_time_ns = output.request_perf_metrics, time.time_ns()
        if self.sampling.return_log_probs and not self.is_cancelled:
            new.log_probs = _log_probs(output, new.token_ids)
        if result.finished:
            self._end(new, output)
            if new.error is None and not self.is_cancelled:
                new.extras = self._extras(result)
        return new if new.token_ids or new.is_last else None

    def _end(self, new: NewOutput, output: Completion) -> None:
        new.perf = self.perf
        new.finish_reason = _FINISH_REASONS.get(output.finish_reason or "")
        if new.finish_reason is None:
            new.error = str(ServerError(f"TensorRT-LLM ended this request: {output.finish_reason}"))
        else:
            end_ids = self._kept_end_ids(output)
            new.token_ids = [*new.token_ids, *end_ids]
            if new.log_probs is not None:
                new.log_probs += [math.nan] * len(end_ids)  # upstream tells none for it

    def _extras(self, result: Result) -> ExtraOutputs | None:
        sampling = self.sampling
        if not comes_at_once(sampling) and not sampling.is_context_only:
            return None
        params = result.outputs[0].disaggregated_params
        extras = ExtraOutputs(
            context_logits=self._packed(result.context_logits) if sampling.return_context_logits else None,
            context_phase_params=context_phase_of(params) if sampling.is_context_only and params else None,
        )
        if sampling.beam_width > 1:
            extras.beams = [self._beam(output) for output in result.outputs]
        elif sampling.return_generation_logits:
            extras.generation_logits = self._packed(result.outputs[0].generation_logits)
        return extras

    def _beam(self, output: Completion) -> Beam:
        sampling, end_ids = self.sampling, self._kept_end_ids(output)
        log_probs = _log_probs(output, output.token_ids) if sampling.return_log_probs else None
        return Beam(
            [*output.token_ids, *end_ids],
            output.cumulative_logprob,
            None if log_probs is None else log_probs + [math.nan] * len(end_ids),
            self._packed(output.generation_logits) if sampling.return_generation_logits else None,
        )

    def _packed(self, logits: Tensor | None) -> PackedArray:
        """Return ``[tokens, vocab] float32`` without the padding, wherever the logits are and of whatever type."""
        if logits is None:
            raise UnreadableOutput("TensorRT-LLM gave no logits; leave return_*_logits out", field="logits")
        return PackedArray.of(logits.float().cpu().numpy()[..., : self.vocab_size])

    def _kept_end_ids(self, output: Completion) -> list[int]:
        """Return the end token, where a compiled engine has kept it to itself; the seam has it in the output."""
        if output.finish_reason != "stop" or self._has_end_token(output.token_ids):
            return []
        return [output.stop_reason if isinstance(output.stop_reason, int) else self.end_ids[0]]

    def _has_end_token(self, token_ids: list[int]) -> bool:
        return bool(token_ids) and token_ids[-1] in self.end_ids


def _log_probs(output: Completion, token_ids: list[int]) -> list[float]:
    """Return the log probabilities of the newest tokens.

    Upstream's list is of all tokens, or with an engine of those of the last output only.
    """
    rows = output.logprobs[len(output.logprobs) - len(token_ids) :] if token_ids else []
    if len(output.logprobs) < len(token_ids):
        raise UnreadableOutput(
            f"TensorRT-LLM gave {len(output.logprobs)} log probabilities for {len(token_ids)} tokens; "
            "leave return_log_probs out",
            field="return_log_probs",
        )
    return [_log_prob(row, token_id) for row, token_id in zip(rows, token_ids, strict=True)]


def _log_prob(row: object, token_id: int) -> float:
    """Return the log probability of the chosen token, from a dict of all that are told, or from a float of it alone."""
    if isinstance(row, float):
        return row
    if not isinstance(row, dict) or token_id not in row:
        raise UnreadableOutput(f"TensorRT-LLM gave no log probability of token {token_id}", field="return_log_probs")
    return float(row[token_id].logprob)
