# SPDX-License-Identifier: Apache-2.0
"""The tensors that each flag of upstream's clients sends, and the outputs that the client then reads without looking.

Written from NVIDIA/TensorRT-LLM, `triton_backend/` (read 2026-11-24); the code is ours. A client that reads what is not
there ends with a traceback, and so does its stand-in here: with a TypeError, which no test catches.

- end-to-end: `inflight_batcher_llm/client/end_to_end_grpc_client.py` at 2a9abd95, always over a stream
- in-flight: `inflight_batcher_llm/client/inflight_batcher_llm_client.py` at 000a01de, over a stream with `--streaming`
  and `--num-return-sequences`, else by ModelInfer
- steps: `tools/inflight_batcher_llm/end_to_end_test.py` at 89fd9b74 and
  `inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py` at 7ed07f06, by ModelInfer and over HTTP
- core model: `tools/inflight_batcher_llm/benchmark_core_model.py` at 02499765, by ModelInfer, over HTTP and a stream
"""

import queue
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from raw_calls import Array, infer_inputs
from running_server import RunningServer
from tritonclient.utils import InferenceServerException

PROMPT = "Born in north-east France, Soyer trained as a"
INPUT_IDS = list(range(5, 15))
PERF_OUTPUTS = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens",
)  # fmt: skip


def one(value: object, dtype: Any) -> Array:
    """``[1, 1]``."""
    array: Array = np.array([[value]], dtype=dtype)
    return array


def listed(*values: object, dtype: Any = object) -> Array:
    """``[1, n]``."""
    return np.array([values], dtype=dtype)


TRUE = one(True, bool)


@dataclass(frozen=True)
class Flag:
    """A flag of a client, or some that belong together.

    Attributes:
        sends: the tensors that it adds, or sends in place of the default.
        outputs: those that the end-to-end client asks for by name, beside the text.
        num_sequences: that the client makes room for.
        is_batched: the client sends two prompts as one request.
        refused_of: the field that the refusal of a stream names; "" where a stream works.
    """

    sends: Mapping[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    num_sequences: int = 1
    is_batched: bool = False
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
    for result in _over_stream(server, model, tensors, ("text_output", *flag.outputs)):
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
        results = _over_stream(server, "tensorrt_llm", tensors, flag.outputs)
    else:
        results = [_by_infer(server, "tensorrt_llm", tensors, flag.outputs)]
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
    return tokens


def steps(server: RunningServer, protocol: str, words: Mapping[str, Array]) -> tuple[str, str]:
    """Return the text by way of the three steps, called by themselves, and that of `ensemble`, as the test compares."""

    def ask(model: str, tensors: dict[str, Array]) -> Any:
        result = _by_infer(server, model, tensors, (), protocol=protocol)
        if isinstance(result, InferenceServerException):
            raise result
        return result

    asked = {"QUERY": listed(PROMPT), "REQUEST_OUTPUT_LEN": one(6, np.int32)}
    prompt = ask("preprocessing", asked | dict(words))
    tokens = ask(
        "tensorrt_llm",
        {
            "input_ids": prompt.as_numpy("INPUT_ID").astype(np.int32),
            "decoder_input_ids": prompt.as_numpy("DECODER_INPUT_ID").astype(np.int32),
            "input_lengths": prompt.as_numpy("REQUEST_INPUT_LEN").astype(np.int32),
            "request_output_len": prompt.as_numpy("REQUEST_OUTPUT_LEN").astype(np.int32),
            "bad_words_list": prompt.as_numpy("BAD_WORDS_IDS").astype(np.int32),
            "stop_words_list": prompt.as_numpy("STOP_WORDS_IDS").astype(np.int32),
            "end_id": prompt.as_numpy("OUT_END_ID").astype(np.int32),
            "pad_id": prompt.as_numpy("OUT_PAD_ID").astype(np.int32),
        },
    )
    made = {"TOKENS_BATCH": tokens.as_numpy("output_ids"), "SEQUENCE_LENGTH": tokens.as_numpy("sequence_length")}
    by_steps = ask("postprocessing", made).as_numpy("OUTPUT")
    at_once = {"text_input": listed(PROMPT), "max_tokens": one(6, np.int32), "bad_words": listed("")}
    whole = ask("ensemble", at_once | {"stop_words": listed("")}).as_numpy("text_output")
    return by_steps[0].decode(), whole[0].decode()


def core_model(server: RunningServer, protocol: str, *, is_stream: bool = False) -> int:
    """Return the length that the benchmark of the core model takes from the shape of the first output."""
    tensors = {
        "input_ids": listed(*INPUT_IDS, dtype=np.int32),
        "input_lengths": one(len(INPUT_IDS), np.int32),
        "request_output_len": one(6, np.int32),
        "pad_id": one(0, np.int32),
        "end_id": one(1, np.int32),
    }
    if is_stream:
        [result] = _over_stream(server, "tensorrt_llm", tensors, ())
    else:
        result = _by_infer(server, "tensorrt_llm", tensors, (), protocol=protocol)
    if isinstance(result, InferenceServerException):
        raise result
    if protocol == "http":
        return int(result.get_response()["outputs"][0]["shape"][2])
    return int(result.get_response(as_json=True)["outputs"][0]["shape"][2])


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


def _over_stream(
    server: RunningServer, model: str, tensors: Mapping[str, Array], outputs: tuple[str, ...]
) -> list[Any]:
    """Return results and errors in their order; the stream is half-closed once the request is sent."""
    received: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: received.put(error if error else result))
        named = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
        client.async_stream_infer(model, infer_inputs(tensors), outputs=named)
        client.stop_stream()
    return [received.get() for _ in range(received.qsize())]


def _by_infer(
    server: RunningServer, model: str, tensors: Mapping[str, Array], outputs: tuple[str, ...], *, protocol: str = "grpc"
) -> Any:
    """Return the result, or the error."""
    try:
        if protocol == "grpc":
            with grpcclient.InferenceServerClient(server.url) as client:
                named = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
                return client.infer(model, infer_inputs(tensors), outputs=named)
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            inputs = []
            for name, data in tensors.items():
                given = httpclient.InferInput(name, list(data.shape), infer_inputs({name: data})[0].datatype())
                inputs.append(given.set_data_from_numpy(data))
            return client.infer(model, inputs)
    except InferenceServerException as exc:
        return exc
