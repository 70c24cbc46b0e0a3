# SPDX-License-Identifier: Apache-2.0
"""The rules of TensorRT-LLM for the requests of one deployment that its signatures do not tell.

Which of them it refuses or does not survive, how many it takes at a time, and which it must not be told to cancel.
Each rule is a row of `docs/trtllm_behaviour.md`, with its source; how long requests may be is kept in
`ensemble_configs.releases.kv_capacity`.
"""

import math

from ensemble_configs.spec.engine.speculation_specs import EagleSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from serving.engines.tensorrt_llm.trtllm_call_parts import comes_at_once
from trireme.base.errors import RequestError


class TrtLlmRules:
    """The rules of one deployment."""

    def __init__(self, spec: TrtLlmSpec) -> None:
        self._spec = spec
        self._is_engine = spec.provider == "tensorrt"

    @property
    def first_sampling(self) -> SamplingParams:
        """Return the sampling of the first token, which is asked for at start: as that of the deployment's requests."""
        beam_width = 1 if self._is_engine else self._spec.max_beam_width
        return SamplingParams(max_tokens=1, end_id=-1, beam_width=beam_width)

    @property
    def max_active(self) -> int:
        """Return how many requests upstream takes from its queue: a batch for each stage and each parallel group."""
        spec = self._spec
        num_groups = spec.tp_size if isinstance(spec, PyTorchEngineSpec) and spec.is_attention_dp else 1
        return math.prod((spec.max_num_seqs, spec.pp_size, num_groups))

    @property
    def drops_waiting_when_cancelled(self) -> bool:
        """Return whether a request that is cancelled in upstream's queue is never heard of again."""
        return not self._is_engine

    def runs_on_when_cancelled(self, sampling: SamplingParams) -> bool:
        """Return whether upstream must not be told of a cancel.

        A compiled engine crashes when a request that streams log probabilities is aborted; a context-only request that
        is aborted keeps its KV blocks until the transfer times out, and ends by itself after its prefill.
        """
        streams_log_probs = sampling.return_log_probs and not comes_at_once(sampling)
        return sampling.is_context_only or (self._is_engine and streams_log_probs)

    def refuse(self, request: GenerationRequest, end_ids: tuple[int, ...]) -> None:
        """Check what upstream would refuse, misunderstand or not survive.

        Raises:
            RequestError: the request has such a value; the error names the field.
        """
        sampling = request.sampling
        self._refuse_beam_width(sampling)
        if sampling.beam_width > 1 and self._is_engine:
            self._refuse_beside_beams(sampling, end_ids)
        self._refuse_sampling_beside_greedy_drafts(sampling)

    def refuse_stream_that_a_pause_would_cut(self, request: GenerationRequest, max_prompt_tokens: int | None) -> None:
        """Check that a stream, paused at its last token, would still be no longer than the longest prompt.

        A paused request resumes with its output as a part of its prompt, cut to the longest prompt: tokens that were
        sent would be made anew. A compiled engine refuses such a stream (`fetchNewRequests` in executorImpl.cpp).

        Args:
            request: the request, of any kind; only streams are refused.
            max_prompt_tokens: tokens of the engine's longest prompt; None: as long as a sequence.

        Raises:
            RequestError: the deployment may pause the stream, and the stream may become too long to resume.
        """
        spec, sampling = self._spec, request.sampling
        is_pausing = spec.capacity_scheduler_policy != "guaranteed_no_evict"
        if not self._is_engine or max_prompt_tokens is None or spec.is_chunked_prefill or not is_pausing:
            return
        if comes_at_once(sampling) or sampling.is_context_only:
            return
        allowed = max_prompt_tokens + 1 - len(request.input_ids)
        if sampling.max_tokens > allowed:
            raise self.refusal(
                "max_tokens",
                sampling.max_tokens,
                f"{allowed} at most after {len(request.input_ids)} prompt tokens; capacity_scheduler_policy: "
                f"{spec.capacity_scheduler_policy} may pause a stream, and without chunked prefill the engine resumes "
                f"{max_prompt_tokens} tokens at most. The deployment can set engine.is_chunked_prefill, or "
                "engine.capacity_scheduler_policy: guaranteed_no_evict",
            )

    def refusal(self, field: str, value: object, allowed: str) -> RequestError:
        """Return the error of a value that cannot be honoured."""
        provider = self._spec.provider
        return RequestError(
            f"{field} ({value}) cannot be honoured by the provider {provider!r}; allowed: {allowed}",
            field=field,
            value=value,
            provider=provider,
        )

    def _refuse_beam_width(self, sampling: SamplingParams) -> None:
        limit = self._spec.max_beam_width
        if self._is_engine and sampling.beam_width > limit:
            raise self.refusal("beam_width", sampling.beam_width, f"1 to {limit}, engine.max_beam_width")
        if not self._is_engine and sampling.beam_width != limit:
            raise self.refusal(
                "beam_width",
                sampling.beam_width,
                f"{limit} alone, for TensorRT-LLM's PyTorch backend serves no other width than engine.max_beam_width; "
                "send others to a deployment of their own",
            )

    def _refuse_beside_beams(self, sampling: SamplingParams, end_ids: tuple[int, ...]) -> None:
        if sampling.return_log_probs:
            raise self.refusal(
                "return_log_probs",
                True,
                "without beams, or with the provider 'pytorch'; a compiled engine tells the best beam's for every beam",
            )
        if sampling.guide_type is not None:
            raise self.refusal(
                "guide_type",
                sampling.guide_type,
                "none beside beams, or the provider 'pytorch'; a compiled engine's grammar follows the first beam "
                "alone",
            )
        if len(end_ids) > 1:
            raise self.refusal(
                "end_id",
                list(end_ids),
                "one token beside beams, of which a compiled engine's search does not survive several; send end_id",
            )

    def _refuse_sampling_beside_greedy_drafts(self, sampling: SamplingParams) -> None:
        speculation = self._spec.speculation
        if isinstance(speculation, EagleSpec) and speculation.is_greedy_sampling and not sampling.is_greedy:
            field = "top_p" if sampling.top_p > 0 else "top_k"
            allowed = "greedy decoding; the engine's speculation.is_greedy_sampling is set"
            raise self.refusal(field, getattr(sampling, field), allowed)


_CACHE_OF_ADAPTERS_FULL = "PEFT Cache is full"


def cure_of(error: Exception) -> str:
    """Return what helps against upstream's error of one request, to be said behind it; nothing where that is open."""
    if _CACHE_OF_ADAPTERS_FULL not in str(error):
        return ""
    return (
        "; requests of more adapters run at once than engine.lora.max_host_adapters holds: raise it, or send this one "
        "again when others have ended"
    )
