# SPDX-License-Identifier: Apache-2.0
"""The tensors that each flag of upstream's clients sends, and the outputs that the client then reads without looking.

Written from NVIDIA/TensorRT-LLM, `triton_backend/` (read 2026-11-24); the code is ours. A client that reads what is not
there ends with a traceback, and so does its stand-in here: with a TypeError, which no test catches.

- end-to-end: `inflight_batcher_llm/client/end_to_end_grpc_client.py` at 2a9abd95, always over a stream
- in-flight: `inflight_batcher_llm/client/inflight_batcher_llm_client.py` at 000a01de, over a stream with `--streaming`
  and `--num-return-sequences`, else by ModelInfer

Those that call the steps by themselves are in `upstream_steps.py`; which flag each script has, in `upstream_flags.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from raw_calls import Array
from running_server import RunningServer
from tritonclient.utils import InferenceServerException
from upstream_calls import TRUE, infer_or_error, listed, one, over_stream

PROMPT = "Born in north-east France, Soyer trained as a"
INPUT_IDS = list(range(5, 15))
PERF_OUTPUTS = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """A flag of a client, or some that belong together.

    Attributes:
        sends: the tensors that it adds, or sends in place of the default.
        outputs: those that the end-to-end client asks for by name, beside the text.
        num_sequences: that the client makes room for.
        is_batched: the client sends two prompts as one request.
        request_id: that it sends.
        refused_of: the field that the refusal of a stream names; "" where a stream works.
    """

    sends: Mapping[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    num_sequences: int = 1
    is_batched: bool = False
    request_id: str = ""
    refused_of: str = ""


_LORA: Mapping[str, Array] = {
    "lora_weights": np.array([[[0.5, 1.0]]], np.float16),
    "lora_config": np.array([[[0, 0, 8]]], np.int32),
    "lora_task_id": one(3, np.uint64),
}

END_TO_END: Mapping[str, Flag] = {
    "none": Flag(),
    "--output-len": Flag({"max_tokens": one(3, np.int32)}),
    "--num-return-sequences 1": Flag({"num_return_sequences": one(1, np.int32)}),
    "--num-return-sequences 2": Flag({"num_return_sequences": one(2, np.int32)}, ("sequence_index",), num_sequences=2),
    "--beam-width": Flag({"beam_width": one(2, np.int32)}, num_sequences=2, refused_of="beam_width"),
    "--temperature": Flag({"temperature": one(0.5, np.float32)}),
    "--repetition-penalty": Flag({"repetition_penalty": one(1.1, np.float32)}),
    "--presence-penalty": Flag({"presence_penalty": one(0.1, np.float32)}),
    "--frequency-penalty": Flag({"frequency_penalty": one(0.1, np.float32)}),
    "--stop-words": Flag({"stop_words": listed("zzz", "\n\n")}),
    "--bad-words": Flag({"bad_words": listed("x")}),
    "--embedding-bias-words --embedding-bias-weights": Flag(
        {"embedding_bias_words": listed("the"), "embedding_bias_weights": listed(2.0, dtype=np.float32)}
    ),
    "--return-log-probs": Flag({"return_log_probs": TRUE}, ("cum_log_probs", "output_log_probs")),
    "--return-context-logits": Flag({"return_context_logits": TRUE}, ("context_logits",)),
    "--return-generation-logits": Flag({"return_generation_logits": TRUE}, ("generation_logits",)),
    "--return-perf-metrics": Flag({"return_perf_metrics": TRUE}, PERF_OUTPUTS),
    "--batch-inputs": Flag(outputs=("batch_index",), is_batched=True),
    "--end-id --pad-id": Flag({"end_id": one(2, np.int32), "pad_id": one(2, np.int32)}),
    "--lora-path --lora-task-id": Flag(_LORA),
    "--lora-task-id": Flag({"lora_task_id": one(3, np.uint64)}),
    "--request-id": Flag(request_id="7"),
    "--exclude-input-in-output": Flag({"exclude_input_in_output": TRUE}),
    "--guided-decoding-guide-type --guided-decoding-guide": Flag(
        {"guided_decoding_guide_type": listed("regex"), "guided_decoding_guide": listed("a+")}
    ),
}

INFLIGHT: Mapping[str, Flag] = {
    "none": Flag(),
    "--draft-tokens-csv": Flag({"draft_input_ids": listed(700, 800, dtype=np.int32)}),
    "--end-id --pad-id": Flag({"end_id": one(2, np.int32), "pad_id": one(2, np.int32)}),
    "--num-return-sequences": Flag({"num_return_sequences": one(2, np.int32)}, num_sequences=2),
    "--beam-width": Flag({"beam_width": one(2, np.int32)}, num_sequences=2, refused_of="beam_width"),
    "--temperature": Flag({"temperature": one(0.5, np.float32)}),
    "--repetition-penalty": Flag({"repetition_penalty": one(1.1, np.float32)}),
    "--presence-penalty": Flag({"presence_penalty": one(0.1, np.float32)}),
    "--frequency-penalty": Flag({"frequency_penalty": one(0.1, np.float32)}),
    "--request-output-len": Flag({"request_output_len": one(3, np.int32)}),
    "--prompt-embedding-table-path": Flag(
        {"prompt_embedding_table": np.array([[[0.5, 1.0]]], np.float16), "prompt_vocab_size": one(1, np.int32)}
    ),
    "--prompt_table_extra_id": Flag({"prompt_table_extra_ids": np.zeros((1, len(INPUT_IDS)), np.uint64)}),
    "--lora-path --lora-task-id": Flag(_LORA),
    "--lora-task-id": Flag({"lora_task_id": one(3, np.uint64)}),
    "--exclude-input-in-output": Flag({"exclude_input_in_output": TRUE}),
    "--return-log-probs": Flag({"return_log_probs": TRUE}),
    "--return-context-logits": Flag({"return_context_logits": TRUE}),
    "--return-generation-logits": Flag({"return_generation_logits": TRUE}),
    "--return-perf-metrics": Flag({"return_perf_metrics": TRUE}),
    "--top-k": Flag({"runtime_top_k": one(5, np.int32)}),
    "--top-p": Flag({"runtime_top_k": one(0, np.int32), "runtime_top_p": one(0.5, np.float32)}),
    "--requested-outputs": Flag(outputs=("output_ids", "sequence_length")),
    "--lookahead_config": Flag(
        {f"lookahead_{name}": one(2, np.int32) for name in ("window_size", "ngram_size", "verification_set_size")}
    ),
    "--return-num-input-tokens": Flag({"return_num_input_tokens": TRUE}),
    "--return-num-output-tokens": Flag({"return_num_output_tokens": TRUE}),
}


def end_to_end(server: RunningServer, model: str, flag: Flag, *, streaming: bool) -> list[list[str]] | str:
    """Return the texts of each prompt as the end-to-end client prints them, or the error that it prints."""
    prompt = {
        "text_input": listed(PROMPT),
        "max_tokens": one(6, np.int32),
        "stream": one(streaming, bool),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        "exclude_input_in_output": one(False, bool),
        **flag.sends,
    }
    tensors = {name: np.concatenate([rows] * (1 + flag.is_batched), axis=0) for name, rows in prompt.items()}
    texts = [[""] * flag.num_sequences for _ in range(1 + flag.is_batched)]
    outputs = ("text_output", *flag.outputs)
    for result in over_stream(server, model, tensors, outputs, request_id=flag.request_id):
        if isinstance(result, InferenceServerException):
            return str(result)
        of_prompt, of_sequence = (_index(result, name) for name in ("batch_index", "sequence_index"))
        text = result.as_numpy("text_output")[0].decode()
        texts[of_prompt][of_sequence] = texts[of_prompt][of_sequence] + text if streaming else text
        if "return_perf_metrics" in flag.sends:
            _read_perf(result)
    return texts


def inflight(server: RunningServer, flag: Flag, *, streaming: bool) -> list[list[int]] | str:
    """Return the tokens of each sequence as the in-flight client prints them, or the error that it prints."""
    tensors = {
        "input_ids": listed(*INPUT_IDS, dtype=np.int32),
        "input_lengths": one(len(INPUT_IDS), np.int32),
        "request_output_len": one(6, np.int32),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        "streaming": one(streaming, bool),
        "end_id": one(-1, np.int32),
        "pad_id": one(50256, np.int32),
        "runtime_top_k": one(1, np.int32),
        "runtime_top_p": one(0.0, np.float32),
        **flag.sends,
    }
    if streaming or "num_return_sequences" in flag.sends:
        results = over_stream(server, "tensorrt_llm", tensors, flag.outputs)
    else:
        results = [infer_or_error(server, "tensorrt_llm", tensors, flag.outputs)]
    is_excluded = "exclude_input_in_output" in flag.sends
    tokens: list[list[int]] = [
        list(INPUT_IDS) if streaming and not is_excluded else [] for _ in range(flag.num_sequences)
    ]
    for result in results:
        if isinstance(result, InferenceServerException):
            return str(result)
        if flag.outputs:
            assert {output.name for output in result.get_response().outputs} == set(flag.outputs)
        own = _index(result, "sequence_index")
        is_beams = "beam_width" in flag.sends
        for sequence in range(flag.num_sequences) if is_beams else [own]:
            row = sequence if is_beams else 0
            _read_extras(result, flag.sends, row)
            if not streaming or result.as_numpy("sequence_length")[0][row] > 0:
                tokens[sequence] += list(result.as_numpy("output_ids")[0][row])
    if "return_context_logits" in flag.sends:  # printed at the end, those of the last response
        assert results[-1].as_numpy("context_logits").shape[:2] == (1, len(INPUT_IDS))
    return tokens


def _index(result: Any, name: str) -> int:
    index = result.as_numpy(name)
    return 0 if index is None else int(index[0][0])


def _read_perf(result: Any) -> None:
    for name in PERF_OUTPUTS:
        assert result.as_numpy(name)[0][0] >= 0


def _read_extras(result: Any, sent: Mapping[str, Array], row: int) -> None:
    if "return_log_probs" in sent:
        assert result.as_numpy("cum_log_probs")[0].shape[0] > row
        assert result.as_numpy("output_log_probs")[0].shape[0] > row
    if "return_generation_logits" in sent:
        assert result.as_numpy("generation_logits")[0].ndim == 3
    if "return_perf_metrics" in sent:
        _read_perf(result)
    for name in ("num_input_tokens", "num_output_tokens"):
        if f"return_{name}" in sent:
            assert result.as_numpy(name)[0][0] > 0
