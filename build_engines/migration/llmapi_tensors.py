# SPDX-License-Identifier: Apache-2.0
"""The tensors of `llmapi`, which has names of its own, and what a client sends instead to the model `ensemble`."""

from collections.abc import Iterator, Mapping

from build_engines.migration.filled_config import FilledConfig
from build_engines.migration.import_report import Entry, lost

# llmapi's name: the contract's at `ensemble`; "" where the contract has none.
INPUTS: Mapping[str, str] = {
    "text_input": "text_input",
    "streaming": "stream",
    "sampling_param_best_of": "",
    "sampling_param_beam_width": "beam_width",
    "sampling_param_temperature": "temperature",
    "sampling_param_top_k": "top_k",
    "sampling_param_top_p": "top_p",
    "sampling_param_frequency_penalty": "frequency_penalty",
    "sampling_param_presence_penalty": "presence_penalty",
    "sampling_param_max_tokens": "max_tokens",
    "sampling_param_stop": "stop_words",
    "sampling_param_seed": "seed",
    "sampling_param_exclude_input_from_output": "exclude_input_in_output",
    "sampling_param_return_perf_metrics": "return_perf_metrics",
    "sampling_param_logits_post_processor_name": "",
    "return_finish_reason": "return_finish_reason",
    "return_stop_reason": "",
    "return_cumulative_logprob": "return_log_probs",
    "stop": "",
    "image_url": "",
    "lora_id": "lora_task_id",
    "lora_name": "",
    "lora_path": "",
    "lora_ckpt_source": "",
}
OUTPUTS: Mapping[str, str] = {
    "text_output": "text_output",
    "finish_reason": "finish_reason",
    "stop_reason": "",
    "cumulative_logprob": "cum_log_probs",
    "kv_cache_reused_block": "kv_cache_reused_blocks",
    "kv_cache_missed_block": "",
    "kv_cache_alloc_new_blocks": "kv_cache_alloc_new_blocks",
    "kv_cache_alloc_total_blocks": "kv_cache_alloc_total_blocks",
    "kv_cache_hit_rate": "",
    "arrival_time_ns": "arrival_time_ns",
    "first_scheduled_time_ns": "first_scheduled_time_ns",
    "first_token_time_ns": "first_token_time_ns",
    "last_token_time_ns": "last_token_time_ns",
    "acceptance_rate": "acceptance_rate",
    "total_accepted_draft_tokens": "total_accepted_draft_tokens",
    "total_draft_tokens": "total_draft_tokens",
}
_INSTEAD = {
    "stop": "cancel the stream, or send stop with the request's id to the model tensorrt_llm",
    "text_output": "what is new in a stream, not all so far (tensorrt_llm_bls with bls.accumulate_tokens gives that)",
    "text_input": "[1, 1] to the model ensemble, not [1] to tensorrt_llm; max_tokens is required beside it",
}


def llmapi_tensor_entries(model: FilledConfig) -> Iterator[Entry]:
    """Yield an entry for each tensor of the old model: clients of llmapi have to change."""
    for direction, tensors, names, verb in (
        ("input", model.config.input, INPUTS, "send"),
        ("output", model.config.output, OUTPUTS, "read"),
    ):
        for tensor in tensors:
            told, more = "no such tensor here", _INSTEAD.get(tensor.name)
            if ours := names.get(tensor.name):
                told = f"have clients {verb} {ours}, with a batch dimension, at ensemble"
            elif more is None:
                told += "; have clients leave it out"
            yield Entry(f"tensorrt_llm.{direction} {tensor.name}", "", lost(f"{told}: {more}" if more else told))
