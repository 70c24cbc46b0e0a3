# SPDX-License-Identifier: Apache-2.0
"""The behaviours of TensorRT-LLM that its signatures do not tell, each with a switch and its source.

All are on for the backend and the version that have them. A test switches one off to show that it matters: with the
switch off the symptom is gone. `docs/trtllm_behaviour.md` lists what the project does about each.
"""

import contextlib
import enum
from collections.abc import Iterator


class Behaviour(enum.Enum):
    """A behaviour; its value is the row of `docs/trtllm_behaviour.md`."""

    # _torch/pyexecutor/py_executor.py, _handle_canceled_requests: update_waiting_queue() forgets the request, and only
    # requests in active_requests get a response.
    CANCEL_DROPS_WAITING = "C1"
    # cpp/tensorrt_llm/executor/executorImpl.cpp, terminateCancelledRequests: loops over the active requests alone; a
    # queued one keeps its id in mCancelledReqIds until fetchNewRequests has made it active.
    CANCEL_WAITS_FOR_SCHEDULE = "C2"
    # NVIDIA/TensorRT-LLM issue 10810 (2026-01-19; 1.1.0 and 1.2.0rc7).
    ABORT_OF_STREAMED_LOG_PROBS_CRASHES = "C3"
    # ai-dynamo/dynamo PR 14507 (2026-09-09), measured: the KV blocks of a context-only request that is aborted wait for
    # kv_transfer_timeout_ms.
    ABORT_OF_CONTEXT_ONLY_STRANDS_BLOCKS = "C4"
    # _torch/speculative/mtp.py, MTPSampler._request_common_handling: three assertions; PR 12547 (2026-03-25) made them
    # warnings in 1.3. Eagle3OneModelSampler inherits them (_torch/speculative/utils.py, get_spec_decoder).
    SPECULATION_DIES_OF_LOG_PROBS = "D1"
    # cpp/tensorrt_llm/batch_manager/handleGenerationLogits.cpp: TLLM_CHECK "Only speculative decoding with external
    # draft tokens supports returning generation logits", thrown in the forward step; executorImpl.cpp, forwardAsync:
    # terminateActiveRequests answers all of them with it. llmapi/llm.py, _prepare_sampling_params: log probabilities
    # ask for generation logits on this backend.
    LOGITS_BESIDE_DRAFTS_FAIL_EVERYBODY = "D1 (drafts)"
    # cpp/tensorrt_llm/batch_manager/createNewDecoderRequests.cpp, newRequest: TLLM_CHECK(beamWidth == 1) where a step
    # has drafts, thrown in the forward step as well.
    BEAMS_BESIDE_DRAFTS_FAIL_EVERYBODY = "D1 (drafts, beams)"
    # cpp/tensorrt_llm/batch_manager/guidedDecoder.cpp, build: the guide is compiled in the forward step, and what
    # xgrammar throws is caught by executorImpl.cpp, forwardAsync, as above. PyTorch answers that request alone since
    # PR 9078 (2025-11).
    BAD_GUIDES_FAIL_EVERYBODY = "D1 (guides)"
    # NVIDIA/TensorRT-LLM issue 7145 (2025-08-22; 0.21.0).
    BEAMS_WITH_STOP_TOKENS_CRASH = "D1 (beams)"
    # cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp, clampWindowSizesToFitAtLeastOneSequence.
    SEQUENCES_ARE_CLAMPED_TO_THE_CACHE = "E2"
    # _torch/pyexecutor/py_executor.py, _validate_request: a width other than max_beam_width is a ValueError, and with
    # it the response of that request.
    ONLY_THE_FULL_BEAM_WIDTH = "F1"
    # docs, features/sampling of 1.0.0 and 1.2.0rc6: beam search needs disable_overlap_scheduler.
    BEAMS_NEED_NO_OVERLAP = "F1 (overlap)"
    # executor/base_worker.py, _get_logprobs: compute_logprobs(..., response.result.output_token_ids[0]) once for a
    # response; executor/result.py, _handle_sequence: every beam adds that list.
    BEAMS_SHARE_LOG_PROBS = "F2"
    # executor/result.py, _handle_sequence: generation_logits[src_idx, :length], still on the GPU, in logits_dtype; an
    # engine's last dimension is the vocabulary padded to a multiple of tp_size.
    LOGITS_ARE_ON_THE_GPU_AND_PADDED = "F3"
    # executor/result.py, _handle_sequence: ValueError("Unknown finish reason: ...") in the process of the caller.
    UNFINISHED_BEAM_RAISES = "F3 (finish)"
    # executor/result.py: token_ids.extend(all of a response); a speculative step accepts several.
    SEVERAL_TOKENS_AT_ONCE = "F4"
    # cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, GuaranteedNoEvictScheduler: what is not reserved up to
    # max_tokens is not begun; nothing begun is paused.
    NOTHING_IS_EVICTED = "G1"
    # cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp, operator(): a decode step has the beam width of the first
    # request that it schedules, in order of arrival; requests of another width are passed over.
    BEAM_WIDTHS_TAKE_TURNS = "G1 (widths)"
    # cpp/tensorrt_llm/executor/executorImpl.cpp, fetchNewRequests: "Request sequence length is potentially greater than
    # max input length" for a stream, without chunked prefill and with any policy but GUARANTEED_NO_EVICT.
    LONG_STREAMS_THAT_MAY_PAUSE_ARE_REFUSED = "G1 (pauses)"
    # executor/executor.py, aget_stats: an empty iterable until _maybe_initialize_iteration_results ran.
    STATS_BEGIN_WITH_A_REQUEST = "G2"
    # executor/result.py, IterationResult.__anext__: a timeout sets _done, which only the next request takes back.
    STATS_END_BY_TIMEOUT = "G2 (end)"
    # executor/base_worker.py and proxy.py, _iteration_result_task: time.sleep(0.2) between two looks.
    STATS_COME_IN_BATCHES = "G2 (batches)"
    # cpp/tensorrt_llm/executor/executorImpl.cpp, appendCurrentIterStats: the oldest goes when there are
    # iter_stats_max_iterations; llmapi/llm_args.py: max_stats_len is the PyTorch backend's.
    STATS_ROWS_ARE_DROPPED = "G2 (rows)"
    # llmapi/llm.py, _check_arguments.
    ARGUMENTS_ARE_CHECKED = "G3"
    # executor/ipc.py: every request goes through pickle on its way to the worker.
    REQUESTS_ARE_PICKLED = "G4"
    # lora_manager.py, load_from_hf: a uid that is in _lora_uid_to_low_ranks is not read; cpp/tensorrt_llm/runtime/
    # loraCache.cpp, put: a task that is there is only made the newest. Nothing frees what LoraManager has read.
    ADAPTERS_ARE_KNOWN_BY_NUMBER = "H1"
    # executor/base_worker.py, _enqueue_request: _load_lora_adapter stands before the try that makes RequestErrors, and
    # worker.py, worker_main, survives those alone. PR 13517 (2026-05) wrapped it, after 1.2.
    FAILED_LOADS_ARE_NOT_OF_THE_REQUEST = "H2"
    # executor/base_worker.py: weights are None if is_adapter_in_cpu_cache; _torch/pyexecutor/resource_manager.py,
    # add_request_peft, in prepare_resources of the first step: evicted since then, load_from_ckpt(py_lora_path) by
    # another uid, an int. What that raises ends the executor's loop, and nobody is told.
    EVICTED_ADAPTERS_ARE_READ_AGAIN = "H3"
    # cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp, addRequestPeft: LoraCacheFullException when all tasks are in
    # progress; executorImpl.cpp, fetchNewRequests: the answer of that request. On PyTorch the scheduler begins no more
    # adapters than the device's cache has pages.
    HOST_CACHE_OF_ADAPTERS_FILLS = "H4"
    # lora_manager.py, load_from_model_dir: a module that is not in lora_target_modules gets rank 0, and is passed over.
    OTHER_MODULES_ARE_LEFT_OUT = "H5"
    # cpp/tensorrt_llm/runtime/loraUtils.cpp, loraValidateRequestTensors: "Expected layerId to be in the range", "lora_
    # weights has to few values". Called by addRequestPeft, on PyTorch in prepare_resources, where nobody catches it; on
    # a compiled engine it is the answer of the request (executorImpl.cpp, fetchNewRequests).
    ADAPTERS_OF_OTHER_MODELS_STOP_EVERYBODY = "H6"


_OF_ENGINES = {
    Behaviour.CANCEL_WAITS_FOR_SCHEDULE,
    Behaviour.ABORT_OF_STREAMED_LOG_PROBS_CRASHES,
    Behaviour.LOGITS_BESIDE_DRAFTS_FAIL_EVERYBODY,
    Behaviour.BEAMS_BESIDE_DRAFTS_FAIL_EVERYBODY,
    Behaviour.BAD_GUIDES_FAIL_EVERYBODY,
    Behaviour.BEAMS_WITH_STOP_TOKENS_CRASH,
    Behaviour.BEAMS_SHARE_LOG_PROBS,
    Behaviour.BEAM_WIDTHS_TAKE_TURNS,
    Behaviour.LONG_STREAMS_THAT_MAY_PAUSE_ARE_REFUSED,
    Behaviour.HOST_CACHE_OF_ADAPTERS_FILLS,
}
_OF_PYTORCH = {
    Behaviour.CANCEL_DROPS_WAITING,
    Behaviour.SPECULATION_DIES_OF_LOG_PROBS,
    Behaviour.ONLY_THE_FULL_BEAM_WIDTH,
    Behaviour.BEAMS_NEED_NO_OVERLAP,
    Behaviour.EVICTED_ADAPTERS_ARE_READ_AGAIN,
    Behaviour.ADAPTERS_OF_OTHER_MODELS_STOP_EVERYBODY,
}
_UNTIL_1_3 = {Behaviour.SPECULATION_DIES_OF_LOG_PROBS, Behaviour.FAILED_LOADS_ARE_NOT_OF_THE_REQUEST}

_switched_off: set[Behaviour] = set()


def behaviours_of(backend: str, version: str) -> frozenset[Behaviour]:
    """Return what a backend of a version does."""
    others = _OF_PYTORCH if backend == "tensorrt" else _OF_ENGINES
    is_1_3 = tuple(map(int, version.split(".")[:2])) >= (1, 3)
    return frozenset(Behaviour) - others - (_UNTIL_1_3 if is_1_3 else set())


def is_on(behaviour: Behaviour) -> bool:
    """Return whether no test has switched it off."""
    return behaviour not in _switched_off


@contextlib.contextmanager
def without(*behaviours: Behaviour) -> Iterator[None]:
    """Switch behaviours off for as long as a block lasts."""
    _switched_off.update(behaviours)
    try:
        yield
    finally:
        _switched_off.difference_update(behaviours)
