# SPDX-License-Identifier: Apache-2.0
"""The engine seam: what an inference engine must do to be served, in token ids and nothing else.

An engine runs in a process of its own and is driven by one thread: `add`, `cancel` and `step` are never called at the
same time. Text, tensors, Triton and the network are left to other rooms.
"""

import enum
import math
from abc import ABC, abstractmethod
from typing import Annotated

import msgspec

from ensemble_configs.chat.prefix_numbers import PromptPrefix
from serving.engines.seam.kv_events import KvEvent
from serving.engines.seam.model_inputs import ModelInputs
from serving.engines.seam.packed_array import PackedArray
from serving.engines.seam.scheduling import Scheduling

MAX_BEAM_WIDTH = 32  # more would hold up all other requests
FIRST_WARM_UP_KEY = 1 << 61  # requests that an engine's process makes by itself have keys from here on


class FinishReason(enum.StrEnum):
    """The reason for which a generation ended, in the words that clients read."""

    STOP = "stop"  # the end token, or a stop token id
    LENGTH = "length"  # max_tokens, or the model's own limit
    STOP_STRING = "stop_string"  # one of the request's stop strings
    CANCELLED = "cancelled"  # the client went away or asked for it, or the server drained


class SamplingParams(ModelInputs, frozen=True, kw_only=True):
    """The sampling of one request; an engine may rely on the ranges.

    Ranges are enforced by `serving.requests.engine_request`. What a request gives to the model is in `ModelInputs`.

    Greedy unless `top_k` > 1 or `top_p` > 0, and `temperature` > 0: upstream's default, where 0 means unset. A default
    asks for nothing; a field that an engine does not honour is left out of `EngineInfo.supported`.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: all tokens
    top_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0  # 0: unset
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None  # None: another one for every request
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    end_id: int | None = None  # None: the model's own; -1: none, generate until max_tokens
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0)] = (
        1.0  # divides positive logits, multiplies negative ones
    )
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    top_p_min: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0  # with the two below: top_p falls with each token
    top_p_decay: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_p_reset_id: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that are never completed
    embedding_bias: dict[int, float] | None = None  # added to the logits, by token id
    return_log_probs: bool = False  # of the tokens that were chosen
    return_context_logits: bool = False
    return_generation_logits: bool = False
    beam_width: Annotated[int, msgspec.Meta(ge=1, le=MAX_BEAM_WIDTH)] = 1  # above 1: beam search, read at its end
    length_penalty: float = 1.0  # of beams, as the two below
    early_stopping: bool | None = None
    beam_search_diversity_rate: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    guide_type: str | None = None  # json, json_schema, regex, ebnf_grammar or structural_tag, as upstream's tensor
    guide: str | None = None  # the schema, expression or grammar
    num_draft_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # to draft at a time; 0: as the deployment says
    use_draft_logits: bool = False  # verify those drafts by their probabilities, not by their ids
    lookahead_window_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    lookahead_ngram_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    lookahead_verification_set_size: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1 or (self.top_k == 0 and self.top_p == 0.0)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt on its way into the engine."""

    key: int  # unique among all requests of this engine's life
    input_ids: list[int]
    sampling: SamplingParams
    stop_strings: tuple[str, ...] = ()  # matched by the engine loop, not by the engine
    scheduling: Scheduling = Scheduling()  # for admission
    tells_perf: bool = False  # its chunks carry the metrics up to them, as upstream's do
    # This many tokens at the end of `input_ids` are output: the request goes on where an earlier one ended. An engine
    # that verifies drafts honours it in all that looks at the output alone, such as penalties and seeds.
    num_output_ids: int = 0
    prefix: PromptPrefix | None = None  # of the prompt's text, for a release that tells KV events


class PerfMetrics(msgspec.Struct, frozen=True, array_like=True):
    """The measurements of upstream for a request that asked for `return_perf_metrics`.

    Times are nanoseconds of the system's clock. None: the engine does not tell, and the client gets no such output.
    """

    arrival_time_ns: int
    first_scheduled_time_ns: int
    first_token_time_ns: int
    last_token_time_ns: int
    kv_cache_alloc_new_blocks: int | None = None
    kv_cache_reused_blocks: int | None = None
    kv_cache_alloc_total_blocks: int | None = None
    total_accepted_draft_tokens: int | None = 0  # none without speculative decoding
    total_draft_tokens: int | None = 0
    num_preemptions: int | None = None  # ours: of this request; upstream has no tensor for it
    kv_cache_transfer_ms: float | None = None  # from another engine's prefill; no tensor of upstream's either
    # Prompt tokens that needed no prefill; ours, where whole blocks are not all that is reused.
    num_cached_tokens: int | None = None
    # For a request that went on in another piece: `kv_cache_reused_blocks` of the first. Later pieces find its blocks.
    first_reused_blocks: int | None = None

    def cached_tokens(self, kv_block_tokens: int) -> int | None:
        """Return how many tokens of the prompt were found in the KV cache; None: the engine does not tell."""
        if self.num_cached_tokens is not None or self.kv_cache_reused_blocks is None:
            return self.num_cached_tokens
        num_blocks = self.kv_cache_reused_blocks if self.first_reused_blocks is None else self.first_reused_blocks
        return num_blocks * kv_block_tokens


class Beam(msgspec.Struct, array_like=True):
    """A sequence that a beam search has found."""

    token_ids: list[int]
    cum_log_prob: float | None = None  # of all the beam's tokens, where the engine knows
    log_probs: list[float] | None = None  # one for each token, where asked for
    generation_logits: PackedArray | None = None  # [tokens, vocab], where asked for


class ExtraOutputs(msgspec.Struct, array_like=True):
    """The outputs beside tokens that few requests ask for."""

    beams: list[Beam] | None = None  # the best first, with the last chunk, whose tokens are the best beam's
    context_logits: PackedArray | None = None  # [prompt tokens, vocab], once
    generation_logits: PackedArray | None = None  # [tokens of this chunk, vocab]
    context_phase_params: bytes | None = None  # with the last chunk


class StepWork(msgspec.Struct, frozen=True, array_like=True):
    """The work of the engine's steps beside one request, for comparisons of engines at equal work.

    Attributes:
        prefill_seqs: sequences in the batch at the step that made the request's first token.
        num_seqs, num_prompt_tokens, num_kv_read_tokens: means over the steps in which the request decoded: sequences
            in the batch, prompt tokens prefilled, and tokens of context read by all sequences. None: it did not decode.
    """

    prefill_seqs: float
    num_seqs: float | None = None
    num_prompt_tokens: float | None = None
    num_kv_read_tokens: float | None = None


class TokenChunk(msgspec.Struct, array_like=True):
    """New tokens of one request, at most one chunk for each request and step.

    The chunk with a `finish_reason` or an `error` is the last of its request, and of a beam search the only one. The
    end token is part of `token_ids`.
    """

    key: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None  # the text of a ServingError, token and all
    log_probs: list[float] | None = None  # one for each of `token_ids`, where asked for
    # Where the engine knows: with the last chunk, and with each where the request `tells_perf`.
    perf: PerfMetrics | None = None
    extras: ExtraOutputs | None = None
    work: StepWork | None = None  # with the last chunk of a request that has had a token


class EngineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes and operations of a step, and the device's peaks; of the whole engine, all its ranks.

    None: the value is not known, and nothing is shown.
    """

    weight_bytes: float | None = None  # read by a decode step: no embedding table, unless it is the head's, too
    kv_bytes_per_token: float | None = None
    flops_per_token: float | None = None  # 2 for each parameter that a token meets
    peak_bandwidth_bytes_per_s: float | None = None
    peak_flops: float | None = None  # operations a second


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an engine, told once when it is ready."""

    provider: str
    vocab_size: int
    max_seq_len: int  # prompt and output together, tokens
    end_ids: tuple[int, ...]
    kv_block_tokens: int
    num_kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int  # in one step; longer prompts take several
    supported: frozenset[str]  # fields of SamplingParams that are honoured; others are refused by name
    why_not: dict[str, str] = {}  # the reason and the way out, for the others
    max_prompt_tokens: int | None = None  # where that is less than `max_seq_len` has room for: without chunked prefill
    is_admitting: bool = False  # the engine heeds a request's `Scheduling`
    costs: EngineCosts | None = None


class AdmissionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that wait before the engine, and those that were refused there."""

    num_waiting: dict[str, int]  # by class
    num_refused: dict[str, int]  # by class and reason, "batch queue_full", in the engine's life
    degradation_step: int | None = None  # load-shedding levels in force; None: the deployment has none


class CancelStats(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of cancelled requests in an engine that batches by itself, counted over the engine's life."""

    num_confirmed: int = 0  # the engine said that it has ended them
    num_waiting: int = 0  # the requests had not begun
    num_ran_on: int = 0  # the engine was not told, and computed them to their end
    num_unconfirmed: int = 0  # the engine never said that it has ended them


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine; counts are of the last step."""

    num_running: int
    num_waiting: int
    num_used_kv_blocks: int
    num_kv_blocks: int
    num_steps: int
    num_preemptions: int | None = None  # in the engine's life; None: the engine does not tell
    batch: "BatchStats | None" = None  # the engine's own statistics of its newest iteration
    admission: "AdmissionStats | None" = None  # the queue before the engine (`serving.admission`)
    residency: "ResidencyStats | None" = None  # for an engine loaded on demand (`serving.on_demand`)
    steps: "StepStats | None" = None  # sums over the steps so far (`serving.telemetry.step_account`)
    cancels: "CancelStats | None" = None  # for an engine that batches by itself
    is_up: bool = True  # False: the engine's process has died, and these are its last stats


class BatchStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The newest iteration as TensorRT-LLM's statistics have it; None: the engine does not tell."""

    num_context_requests: int | None = None  # requests without a token before this iteration
    num_generation_requests: int | None = None
    num_context_tokens: int | None = None  # prompt tokens computed in this iteration
    num_paused_requests: int | None = None
    micro_batch_id: int | None = None
    cpu_bytes: int | None = None  # allocated by the engine's runtime
    gpu_bytes: int | None = None
    pinned_bytes: int | None = None
    num_reused_kv_blocks: int | None = None  # in the engine's life


class StepStats(msgspec.Struct, array_like=True):
    """Sums over the steps of an engine's life; `serving.telemetry.step_account` says how they are counted."""

    num_steps: int = 0
    steps_s: float = 0.0
    num_prefill_steps: int = 0
    prefill_steps_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_kv_read_tokens: int = 0
    num_batch_seqs: int = 0


class ResidencyStats(msgspec.Struct, frozen=True, kw_only=True):
    """The loads of an engine that is in memory by turns with others."""

    is_resident: bool
    num_loads: int  # in the life of its process
    last_load_s: float


class Engine(ABC):
    """An in-flight-batching engine behind the seam."""

    info: EngineInfo

    @property
    def plain_sampling(self) -> SamplingParams:
        """Return the sampling of a request for one token, which is its last."""
        return SamplingParams(max_tokens=1, end_id=-1)

    @abstractmethod
    def add(self, request: GenerationRequest) -> None:
        """Queue a request; its first chunk comes from a later `step`.

        Raises:
            RequestError: the engine cannot serve it (too long for it, or an unsupported parameter). The engine goes on.
        """

    @abstractmethod
    def cancel(self, key: int) -> None:
        """Stop a request and free its KV blocks within two steps. No chunk of it follows. Unknown keys are ignored."""

    def is_ending(self, key: int) -> bool:  # noqa: ARG002  an engine that is driven step by step needs two steps
        """Return whether a cancelled request may hold KV blocks for longer than two steps."""
        return False

    def perf_of(self, key: int) -> PerfMetrics | None:  # noqa: ARG002  an engine may know nothing
        """Return the metrics of a request that is about to be cancelled and has had a token.

        None: the engine does not tell. The last chunk of a request has its metrics anyway.
        """
        return None

    @abstractmethod
    def step(self) -> list[TokenChunk]:
        """Run one iteration of the batch and return what it made; may be empty.

        A request that fails alone ends with a chunk that has an `error`; an exception means that the engine is broken.
        """

    def take_kv_events(self) -> list[KvEvent]:
        """Return what has come into the KV cache and gone since the last call; for an engine that is to tell it."""
        return []

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Return whether `step` has anything to do, cancelled requests to clean up included."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Return the state of the engine; cheap enough for every step."""

    @property
    def progress(self) -> int | None:
        """Return a number that changes when the work goes on; for an engine that steps by itself.

        The `step` of such an engine returns though nothing may go on, for it batches in processes of its own. With work
        and an unchanged number for as long as the deployment's `watchdog_s`, the engine hangs.
        None: there is no work, or each return of `step` is progress.
        """
        return None

    @property
    def max_idle_s(self) -> float:
        """Return the seconds for which the engine may be left without a `step` while it has no work."""
        return math.inf

    def close(self) -> None:
        """Free everything. The engine is not used afterwards."""
