# SPDX-License-Identifier: Apache-2.0
"""The fake's answers to a request: tokens, log probabilities, logits, reasons and errors, put into its result.

A response is made in the executor's thread and applied when the caller takes it, as upstream reads a response of the
worker in the caller's process (tensorrt_llm/executor/result.py, _handle_response).
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from trtllm_adapters import Sent
from trtllm_results import RequestOutput, now, perf_metrics
from trtllm_scheduler import Sequence
from trtllm_switches import Behaviour
from trtllm_tensors import log_probs_of, logits_of


class Running:
    """A request between its submission and its last response."""

    def __init__(self, result: RequestOutput, sequence: Sequence, error: type, given: dict[str, Any]) -> None:
        self.number, self.result, self.sequence, self.error, self.given = (
            sequence.number, result, sequence, error, given,
        )  # fmt: skip
        self.params = given["sampling_params"]
        self.tokens: Iterator[int] = iter(())
        self.make_tokens: Callable[..., Iterator[int]] = lambda: iter(())
        self.ends: set[int] = set()
        self.held: list[int] = []  # until the end, of one that does not stream
        self.is_aborted = False
        self.adapter: Sent | None = None
        self.has_weights = True  # False: its adapter is not in the cache yet
        self.times: list[timedelta] = [now()]  # of its arrival, first iteration and first token

    @property
    def is_context_only(self) -> bool:
        phase = self.given["disaggregated_params"]
        return phase is not None and phase.request_type == "context_only"


class Responder:
    """The part of an executor that answers."""

    def __init__(self, args: Any, *, backend: str, torch: Any) -> None:
        self.args, self.backend = args, backend
        self._torch = torch
        self.vocab_size = 0
        self.are_log_probs_of_all_tokens = True  # False: of the last output's, as before PR 7580 (2025-09)
        self.is_without_log_probs = False
        self.unfinished_beams: set[int] = set()  # by first prompt token: searches that leave a beam unfinished

    def has(self, behaviour: Behaviour) -> bool:
        """Return whether the executor behaves so."""
        raise NotImplementedError

    def _forget(self, running: Running) -> None:
        raise NotImplementedError

    def _finish(self, running: Running, tokens: list[int], reason: str, stop_reason: int | None = None) -> None:
        grow = self._grower(running, running.held + tokens, is_last=True)
        self._forget(running)
        is_unfinished = running.result.prompt_token_ids[0] in self.unfinished_beams and len(running.result.outputs) > 1

        def end() -> None:
            grow()
            for output in running.result.outputs:
                output.finish_reason, output.stop_reason = reason, stop_reason
            self._tell_more(running)
            if is_unfinished and self.has(Behaviour.UNFINISHED_BEAM_RAISES):
                raise ValueError("Unknown finish reason: FinishReason.NOT_FINISHED")
            running.result.end()

        self._deliver(running, end)

    def _deliver(self, running: Running, change: Callable[[], None]) -> None:
        running.result.num_untaken += 1
        running.result.put(change)

    @staticmethod
    def _raiser(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    def _grower(self, running: Running, tokens: list[int], *, is_last: bool = False) -> Callable[[], None]:
        has_perf = running.params.return_perf_metrics and self.args.return_perf_metrics and len(running.times) == 3
        perf = perf_metrics(running.times, running.sequence.num_blocks, is_last=is_last) if has_perf else None

        def grow() -> None:
            for index, output in enumerate(running.result.outputs):
                ids = [token + index for token in tokens]  # beams differ in every token
                output.token_ids.extend(ids)
                output.request_perf_metrics = perf
                if running.params.logprobs and not self.is_without_log_probs:
                    if not self.are_log_probs_of_all_tokens:
                        output.logprobs.clear()
                    output.logprobs.extend(log_probs_of(tokens if self.has(Behaviour.BEAMS_SHARE_LOG_PROBS) else ids))
                    output.cumulative_logprob = (output.cumulative_logprob or 0.0) - sum(ids) / 1000

        return grow

    def _tell_more(self, running: Running) -> None:
        """Add what comes with the last output only."""
        result, params, prompt = running.result, running.params, running.result.prompt_token_ids
        if params.return_context_logits:
            result.context_logits = self._logits(prompt)
        for output in result.outputs:
            if params.return_generation_logits:
                output.generation_logits = self._logits(output.token_ids)
        if running.is_context_only:
            phase = running.given["disaggregated_params"]
            told = {"first_gen_tokens": result.outputs[0].token_ids[:1], "ctx_request_id": running.number}
            result.outputs[0].disaggregated_params = type(phase)(
                request_type="context_only", opaque_state=bytes(prompt[:1]), **told
            )

    def _logits(self, token_ids: list[int]) -> Any:
        is_real = self.has(Behaviour.LOGITS_ARE_ON_THE_GPU_AND_PADDED)
        tp_size = self.args.tensor_parallel_size if self.backend == "tensorrt" else 1
        return logits_of(
            token_ids,
            self._torch,
            vocab_size=self.vocab_size,
            padded_size=-(-self.vocab_size // tp_size) * tp_size if is_real else self.vocab_size,
            dtype="bfloat16" if is_real else self._torch.float32,
            device="cuda" if is_real else "cpu",
        )
