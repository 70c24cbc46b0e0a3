# SPDX-License-Identifier: Apache-2.0
"""Upstream's clients that call `preprocessing`, `tensorrt_llm` and `postprocessing` by themselves, and its benchmark.

Written from NVIDIA/TensorRT-LLM, `triton_backend/`; the code is ours. What they read without looking is read so here,
and a refusal, which none of them catches, is raised.

- speculative: `inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py` at 7ed07f06, by ModelInfer
- comparison: `tools/inflight_batcher_llm/speculative_decoding_test.py` at 1cee55d0: `ensemble` over a stream, then the
  speculative client, or `tensorrt_llm_bls`
- end to end: `tools/inflight_batcher_llm/end_to_end_test.py` at 89fd9b74, by ModelInfer and over HTTP
- core model: `tools/inflight_batcher_llm/benchmark_core_model.py` at 02499765, by ModelInfer, over HTTP and a stream
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from raw_calls import Array
from running_server import RunningServer
from upstream_calls import TRUE, infer, listed, one, over_stream
from upstream_clients import INPUT_IDS, PERF_OUTPUTS, PROMPT, Flag, end_to_end


@dataclass(frozen=True)
class Speculation:
    """The changes that the flags of the speculative client make.

    Attributes:
        words: sent to `preprocessing`.
        sampling: sent to both engines.
        asks_draft_logits: of the draft model's answers.
        asks_target_logits: of the target model's.
    """

    words: Mapping[str, Array] = field(default_factory=dict)
    sampling: Mapping[str, Array] = field(default_factory=dict)
    output_len: int = 12
    num_draft_tokens: int = 5
    asks_draft_logits: bool = False
    asks_target_logits: bool = False


SPECULATIVE: Mapping[str, Speculation] = {
    "none": Speculation(),
    "--output-len": Speculation(output_len=3),
    "--num-draft-tokens": Speculation(num_draft_tokens=2),
    "--num-draft-tokens 0": Speculation(num_draft_tokens=0),
    "--temperature": Speculation(sampling={"temperature": one(0.5, np.float32)}),
    "--repetition-penalty": Speculation(sampling={"repetition_penalty": one(1.1, np.float32)}),
    "--presence-penalty": Speculation(sampling={"presence_penalty": one(0.1, np.float32)}),
    "--frequency-penalty": Speculation(sampling={"frequency_penalty": one(0.1, np.float32)}),
    "--stop-words": Speculation({"STOP_WORDS_DICT": listed("zzz", "\n\n")}),
    "--bad-words": Speculation({"BAD_WORDS_DICT": listed("x")}),
    "--end-id --pad-id": Speculation({"END_ID": one(2, np.int32), "PAD_ID": one(2, np.int32)}),
    "--return-draft-model-draft-logits": Speculation(asks_draft_logits=True),
    "--return-target-model-accepted-token-logits": Speculation(asks_target_logits=True),
}


def speculate(server: RunningServer, case: Speculation) -> str:
    """Return the final text of the speculative client, one server being both of its own."""
    output_len = one(case.output_len, np.int32)
    prompt = infer(server, "preprocessing", {"QUERY": listed(PROMPT), "REQUEST_OUTPUT_LEN": output_len, **case.words})
    prompt_ids = np.squeeze(prompt.as_numpy("INPUT_ID").astype(np.int32), axis=0)
    lists = {
        "bad_words_list": prompt.as_numpy("BAD_WORDS_IDS").astype(np.int32),
        "stop_words_list": prompt.as_numpy("STOP_WORDS_IDS").astype(np.int32),
        "end_id": one(prompt.as_numpy("OUT_END_ID").astype(np.int32)[0][0], np.int32),
        "pad_id": one(prompt.as_numpy("OUT_PAD_ID").astype(np.int32)[0][0], np.int32),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        **case.sampling,
    }

    def ask(ids: Array, num_tokens: int, more: Mapping[str, Array], *, asks_logits: bool) -> Array:
        tensors = {
            "input_ids": ids[np.newaxis],
            "input_lengths": one(len(ids), np.int32),
            "request_output_len": one(num_tokens, np.int32),
            **lists,
            **more,
            **({"return_generation_logits": TRUE} if asks_logits else {}),
        }
        result = infer(server, "tensorrt_llm", tensors)
        length = result.as_numpy("sequence_length").astype(np.int32)
        assert length.shape == (1, 1)
        if asks_logits:
            assert result.as_numpy("generation_logits").astype(np.float32).squeeze(0).ndim == 3
        made: Array = np.squeeze(result.as_numpy("output_ids").astype(np.int32), axis=(0, 1))
        assert len(made) == length[0, 0]
        return made

    end, ids, draft = len(prompt_ids) + case.output_len, prompt_ids, None
    while True:
        num_drafts, more = min(case.num_draft_tokens, end - len(ids) - 1), {}
        if num_drafts > 0:
            draft = ask(ids, num_drafts, {}, asks_logits=case.asks_draft_logits)
            more = {"draft_input_ids": draft[np.newaxis, len(ids) :]}
        num_tokens = len(draft) - len(ids) + 1 if draft is not None and num_drafts > 0 else 1
        last, ids = ids, ask(ids, num_tokens, more, asks_logits=case.asks_target_logits)
        is_draft = draft is not None and np.array_equal(draft, ids)
        stops = lists["stop_words_list"][0]
        is_stopped = any(np.array_equal(ids[-len(words) :], words) for words in stops)
        if len(ids) >= end or is_draft or np.array_equal(last, ids) or is_stopped:
            break
    tokens = {"TOKENS_BATCH": ids[np.newaxis, np.newaxis], "SEQUENCE_LENGTH": one(len(ids), np.int32)}
    text: bytes = infer(server, "postprocessing", tokens).as_numpy("OUTPUT")[0]
    return text.decode()


# Beside those of the speculative client, which it hands on to both.
COMPARED: Mapping[str, tuple[Flag, bool]] = {  # whether `tensorrt_llm_bls` is asked for the drafts
    "--execute-bls-speculative-decoding": (Flag(), True),
    "--use-draft-logits": (Flag({"use_draft_logits": TRUE}), True),
    "--return-generation-logits": (Flag({"return_generation_logits": TRUE}, ("generation_logits",)), True),
    "--return-perf-metrics": (Flag({"return_perf_metrics": TRUE}, PERF_OUTPUTS), True),
    "--exclude-input-in-output": (Flag({"exclude_input_in_output": TRUE}), False),
}


def compared(server: RunningServer, flag: Flag, *, is_bls: bool, num_draft_tokens: int = 5) -> tuple[str, str]:
    """Return the control's text and that with drafts; the text of an error, which is printed, is one, too."""
    nothing = {"embedding_bias_words": np.empty((1, 0), object), "embedding_bias_weights": np.empty((1, 0), np.float32)}
    shared = {name: flag.sends[name] for name in ("exclude_input_in_output",) if name in flag.sends}
    control = end_to_end(server, "ensemble", Flag(nothing | shared), streaming=False)
    if not is_bls:
        return _only(control), speculate(server, Speculation(output_len=6))
    drafts = {"num_draft_tokens": one(num_draft_tokens, np.int32)} if num_draft_tokens else {}
    asked = {"use_draft_logits": one(False, bool), **nothing, **drafts, **flag.sends}
    return _only(control), _only(end_to_end(server, "tensorrt_llm_bls", replace(flag, sends=asked), streaming=False))


def _only(answer: list[list[str]] | str) -> str:
    return answer if isinstance(answer, str) else answer[0][0]


STEPS: Mapping[str, Sequence[str]] = {  # what is asked for, by the outputs that are then read
    "none": (),
    "--return-log-probs": ("cum_log_probs", "output_log_probs"),
    "--return-context-logits": ("context_logits",),
    "--return-generation-logits": ("generation_logits",),
}


def steps(server: RunningServer, protocol: str, outputs: Sequence[str] = ()) -> list[str]:
    """Return the texts by way of the three steps, of `ensemble` and of `tensorrt_llm_bls` (`--test-bls`)."""
    words = {"BAD_WORDS_DICT": listed(""), "STOP_WORDS_DICT": listed("")}
    asked = {"QUERY": listed(PROMPT), **words, "REQUEST_OUTPUT_LEN": one(6, np.int32)}
    returns = {f"return_{name.removeprefix('output_').removeprefix('cum_')}": TRUE for name in outputs}
    prompt = infer(server, "preprocessing", asked, protocol=protocol)
    tensors = {
        "input_ids": prompt.as_numpy("INPUT_ID"),
        "decoder_input_ids": prompt.as_numpy("DECODER_INPUT_ID"),
        "input_lengths": prompt.as_numpy("REQUEST_INPUT_LEN"),
        "request_output_len": prompt.as_numpy("REQUEST_OUTPUT_LEN"),
        "end_id": prompt.as_numpy("OUT_END_ID"),
        "pad_id": prompt.as_numpy("OUT_PAD_ID"),
    }
    tokens = infer(server, "tensorrt_llm", tensors | returns, protocol=protocol)
    alone = {name: tokens.as_numpy(name).astype(np.float32) for name in outputs}
    made = {
        "TOKENS_BATCH": tokens.as_numpy("output_ids").astype(np.int32),
        "SEQUENCE_LENGTH": tokens.as_numpy("sequence_length"),
    }
    texts = [infer(server, "postprocessing", made, protocol=protocol).as_numpy("OUTPUT")]
    whole = {"text_input": listed(PROMPT), "max_tokens": one(6, np.int32)}
    for model in ("ensemble", "tensorrt_llm_bls"):
        sent = {**whole, "bad_words": listed(""), "stop_words": listed(""), **returns}
        result = infer(server, model, sent, ("text_output", *outputs), protocol=protocol)
        texts.append(result.as_numpy("text_output"))
        for name in outputs:
            assert np.allclose(alone[name], result.as_numpy(name), 1e-2, 1e-2), name
            assert result.as_numpy(name).shape == alone[name].shape
    return [text[0].decode() for text in texts]


def core_model(server: RunningServer, protocol: str, *, is_stream: bool = False, ids: Sequence[int] = INPUT_IDS) -> int:
    """Return the length that the benchmark of the core model takes from the shape of the first output."""
    tensors = {
        "input_ids": listed(*ids, dtype=np.int32),
        "input_lengths": one(len(ids), np.int32),
        "request_output_len": one(6, np.int32),
        "pad_id": one(0, np.int32),
        "end_id": one(1, np.int32),
    }
    result: Any
    if is_stream:
        [result] = over_stream(server, "tensorrt_llm", tensors, request_id="1")
    else:
        result = infer(server, "tensorrt_llm", tensors, protocol=protocol)
    if protocol == "http":
        return int(result.get_response()["outputs"][0]["shape"][2])
    assert result.get_response().id == "1"  # by which the benchmark finds when it began
    return int(result.get_response(as_json=True)["outputs"][0]["shape"][2])
