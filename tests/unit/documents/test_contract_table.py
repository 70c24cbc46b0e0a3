# SPDX-License-Identifier: Apache-2.0
"""Every cell of the conformance table: the tensor is sent to the provider's engine, and works or is refused by name."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from equipped_engines import DEMO_MODEL, LORA_TASK_ID, equipped_engine
from test_upstream_contract import MULTIMODAL, OLD_NAMES
from vllm_environment import WHY_NOT, is_there

from documents.contract_table import (
    PROVIDERS,
    condition_of,
    input_rows,
    names_of,
    output_rows,
    why_refused,
)
from ensemble_configs.render.tensors import CLIENT_INPUTS, PROMPT_TENSORS, Tensor, inputs_of, outputs_of
from ensemble_configs.spec.model_names import PYTHON_MODELS
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.seam.capabilities import BEAM_FIELDS
from serving.engines.seam.packed_array import Array
from serving.pipeline.prompt_step import PromptStep
from serving.pipeline.reply_tensors import reply_tensors, text_tensors
from serving.pipeline.running_request import Reply, RunningRequest
from serving.pipeline.sequence_group import Member, SequenceGroup
from serving.pipeline.text_step import TextStep
from serving.requests.engine_request import RequestDecoder
from serving.requests.prompt_batch import engine_rows
from serving.requests.stream_state import unpack_context
from serving.text.detokenization import TextDecoder
from trireme.base.errors import RequestError
from trireme.base.project_files import CODE_ROOT

UPSTREAM = json.loads((CODE_ROOT / "tests" / "data" / "upstream_contract.json").read_text())
DTYPES = {
    "TYPE_BOOL": np.bool_, "TYPE_UINT8": np.uint8, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64,
    "TYPE_UINT64": np.uint64, "TYPE_FP16": np.float16, "TYPE_FP32": np.float32, "TYPE_STRING": np.object_,
}  # fmt: skip
PROMPT = [20, 30, 40, 50]

# What a tensor is sent with, by the engine step's name or, for one that it does not see, the client's.
VALUES: dict[str, object] = {
    "text_input": [b"Once upon a time"], "messages": [b'[{"role": "user", "content": "Once"}]'],
    "tools": [b"[]"],
    "max_tokens": [3], "decoder_text_input": [b"Born"], "bad_words": [b"the"],
    "stop_words": [b"xyz"], "embedding_bias_words": [b"the"], "embedding_bias_weights": [2.0],
    "prompt_table_extra_id": [9], "input_ids": PROMPT, "input_lengths": [4], "request_output_len": [3], "end_id": [5],
    "pad_id": [5], "stop_words_list": [[60, 61], [2, -1]], "bad_words_list": [[60], [1]],
    "decoder_input_ids": [21, 22], "decoder_input_lengths": [2], "embedding_bias": [0.0, 2.0],
    "prompt_table_extra_ids": [9, 9, 9, 9], "streaming": [True], "exclude_input_in_output": [True],
    "temperature": [0.5], "runtime_top_k": [5], "runtime_top_p": [0.9], "seed": [7], "random_seed": [7],
    "min_tokens": [2], "min_length": [2], "return_num_input_tokens": [True], "return_num_output_tokens": [True],
    "return_num_cached_tokens": [True],
    "return_finish_reason": [True], "return_release": [True], "return_token_ids": [True],
    "continued_ids": [21, 22], "num_return_sequences": [2], "beam_width": [2],
    "len_penalty": [0.5],
    "repetition_penalty": [1.1], "presence_penalty": [0.1], "frequency_penalty": [0.1], "return_log_probs": [True],
    "return_context_logits": [True], "return_generation_logits": [True], "return_perf_metrics": [True],
    "return_kv_cache_reuse_stats": [True], "prompt_vocab_size": [2], "lora_task_id": [LORA_TASK_ID],
    "lora_name": [str(LORA_TASK_ID).encode()],
    "prompt_embedding_table": [[0.5, 1.0], [1.5, 2.0]], "lora_weights": [[0.5, 1.0]], "lora_config": [[0, 0, 8]],
    "guided_decoding_guide_type": [b"regex"], "guided_decoding_guide": [b"[0-9]+"], "stop": [True],
    "encoder_input_features": [[0.5, 1.0]], "encoder_output_lengths": [1], "draft_input_ids": [60],
    "draft_logits": None, "draft_acceptance_threshold": [0.5], "runtime_top_p_min": [0.1],
    "runtime_top_p_decay": [0.5], "runtime_top_p_reset_ids": [5], "early_stopping": [True],
    "beam_search_diversity_rate": [0.5], "cross_attention_mask": [[True, False]],
    "mrope_rotary_cos_sin": [0.5, 1.0], "mrope_position_deltas": [3], "context_phase_params": None,
    "skip_cross_attn_blocks": [True], "retention_token_range_starts": [0], "retention_token_range_ends": [-1],
    "retention_token_range_priorities": [80], "retention_token_range_durations_ms": [500],
    "retention_decode_priority": [80], "retention_decode_duration_ms": [500], "lookahead_window_size": [3],
    "lookahead_ngram_size": [2], "lookahead_verification_set_size": [2], "num_draft_tokens": [2],
    "use_draft_logits": [True], "image_input": [[[[0.5]]]], "image_bytes_input": [[[[7]]]],
    "image_url_input": [b"picture.png"], "video_bytes_input": [[[[7]]]], "priority": [1], "tenant": [b"a"],
    "deadline_ms": [60_000], "queue_timeout_ms": [60_000],
}  # fmt: skip
_RANGES = [f"retention_token_range_{name}" for name in ("starts", "ends", "priorities")]
_LOOKAHEAD = ["lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"]
_LORA = ["lora_task_id", "lora_weights", "lora_config"]
# OpenVINO's cached tokens are not known any more once it has had a beam search.
_OF_A_FRESH_ENGINE = {"return_num_cached_tokens"}
# What a tensor says nothing without.
COMPANIONS: dict[str, list[str]] = {
    "tools": ["messages"],
    "embedding_bias_words": ["embedding_bias_weights"], "embedding_bias_weights": ["embedding_bias_words"],
    "decoder_input_lengths": ["decoder_input_ids"], "prompt_vocab_size": ["prompt_embedding_table"],
    "lora_weights": _LORA, "lora_config": _LORA, "guided_decoding_guide_type": ["guided_decoding_guide"],
    "guided_decoding_guide": ["guided_decoding_guide_type"], "encoder_output_lengths": ["encoder_input_features"],
    "use_draft_logits": ["num_draft_tokens", "runtime_top_p"],
    "draft_logits": ["draft_input_ids"], "draft_acceptance_threshold": ["draft_input_ids", "draft_logits"],
    "cross_attention_mask": ["encoder_input_features"], "skip_cross_attn_blocks": ["encoder_input_features"],
    "mrope_rotary_cos_sin": ["mrope_position_deltas"], "mrope_position_deltas": ["mrope_rotary_cos_sin"],
    **dict.fromkeys((*_RANGES, "retention_token_range_durations_ms"), _RANGES),
    **dict.fromkeys(_LOOKAHEAD, _LOOKAHEAD),
    **{key: ["runtime_top_p"] for key in ("seed", "random_seed", "runtime_top_p_min", "runtime_top_p_decay")},
    "runtime_top_p_reset_ids": ["runtime_top_p"],
    **{key: ["beam_width"] for key in ("len_penalty", "early_stopping", "beam_search_diversity_rate")},
    "retention_decode_duration_ms": ["retention_decode_priority"],
}  # fmt: skip


def key_of(row: Tensor) -> str:
    """Return a tensor's name in this module: as it is sent, to the engine step where that takes it."""
    return row.engine or row.ensemble or row.bls


def is_text(row: Tensor) -> bool:
    """Return whether the tensor is sent by way of preprocessing."""
    return not (row.engine or row.bls)


ROWS_BY_KEY = {key_of(row): row for row in input_rows() if key_of(row)}
BETWEEN_STEPS = [row for row in input_rows() if row.postprocessing]  # postprocessing's, whatever the provider
SENT = [row for row in input_rows() if row not in BETWEEN_STEPS and row.engine != "stream_context"]
# Whose engine is a program of its own.
MARKS = {"vllm": (pytest.mark.slow, pytest.mark.skipif(not is_there(), reason=WHY_NOT))}
CELLS = [
    pytest.param(row, provider, id=f"{key_of(row)}-{provider}", marks=MARKS.get(provider, ()))
    for row in SENT
    for provider in PROVIDERS
]
OUTPUT_CELLS = [
    pytest.param(row, provider, id=f"{key_of(row)}-{provider}", marks=MARKS.get(provider, ()))
    for row in output_rows()
    if key_of(row)
    for provider in PROVIDERS
]
OF_PREPROCESSING = [row.preprocessing for row in output_rows() if not key_of(row)]  # read by callers of the steps


# What a deployment that does all the rest cannot do, and what it needs for it; then something else is lost: with drafts
# other fields, and with beams on TensorRT-LLM's PyTorch backend every request without them.
DRAFTING: dict[str, object] = {"max_ngram_size": 3}
BEAMS: dict[str, object] = {"max_beam_width": 2}
NO_DRAFTS: dict[str, object] = {"speculation": None}
NEEDS_OTHER_DEPLOYMENT = {
    "openvino": {"num_draft_tokens": DRAFTING},
    "tensorrt": dict.fromkeys(
        ("return_log_probs", "return_generation_logits", "guide_type", "guide", *BEAM_FIELDS), NO_DRAFTS
    ),
    "pytorch": dict.fromkeys(BEAM_FIELDS, BEAMS),
}


def tokenizer() -> TokenizerSpec:
    return TokenizerSpec(dir=DEMO_MODEL.parents[1] / "target")


class Server:
    """The way of a request from tensors to an engine and back, without Triton and processes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prompt_step = PromptStep.from_spec(tokenizer())
        self.decoder = RequestDecoder(msgspec.structs.replace(engine.info, is_admitting=True))
        self._keys = iter(range(1, 10_000))

    def value(self, key: str) -> Array:
        """``[1, *dims]``."""
        row = ROWS_BY_KEY[key]
        value = VALUES[key]
        if key == "draft_logits":
            value = np.zeros((1, self.engine.info.vocab_size))
        elif key == "context_phase_params":
            value = self.answer_to({}, is_context_only=True)["context_phase_params"][0]
        return np.array([value], dtype=DTYPES[row.data_type])

    def tensors(self, keys: list[str], *, is_text: bool = False) -> dict[str, Array]:
        """Return a request to the engine step with these tensors, by way of preprocessing if `is_text`."""
        if not is_text:
            return {key: self.value(key) for key in ("input_ids", "request_output_len", *keys)}
        names = {row.ensemble: row.preprocessing for row in CLIENT_INPUTS if row.preprocessing}
        prompt = [] if "messages" in keys else ["text_input"]
        given = {names[key]: self.value(key) for key in (*prompt, "max_tokens", *keys)}
        to_engine = {row.preprocessing: row.engine for row in PROMPT_TENSORS if row.engine}
        outputs = self.prompt_step.prepare(given)
        return {to_engine[name]: array for name, array in outputs.items() if name in to_engine}

    def answer_to(self, tensors: dict[str, Array], *, is_context_only: bool = False) -> dict[str, Array]:
        """Return all outputs of a request, or of the last prompt of a batch; the last one of each name."""
        minimal = self.tensors([]) if "input_ids" not in tensors else {}
        rows = engine_rows(minimal | tensors)
        decoded = self.decoder.decode(rows[-1], is_context_only=is_context_only)
        options = decoded.options
        packed = options.stream_context
        answers: dict[str, Array] = {}
        sink: Any = SimpleNamespace(
            send=lambda reply: answers.update(self._tensors(reply)), takes_one=False, named_outputs=tuple
        )
        has_several = (options.num_return_sequences or 1) > 1
        if has_several or len(rows) > 1:
            member = Member(len(rows) - 1 if len(rows) > 1 else None, 0 if has_several else None)
            sink = SequenceGroup(sink, [member, member], on_failure=lambda: None).sinks[0]
        times: Any = SimpleNamespace(arrival_ns=1)
        context = None if packed is None else unpack_context(packed)
        running = RunningRequest(sink, "", options, context, True, times, decoded.sampling.return_log_probs)
        key = next(self._keys)
        self.engine.add(GenerationRequest(key=key, input_ids=options.input_ids, sampling=decoded.sampling))
        while self.engine.has_work:
            for chunk in self.engine.step():
                assert chunk.error is None, chunk.error
                if (reply := running.reply_to(chunk)) is not None:
                    sink.send(reply)
        return answers

    @staticmethod
    def _tensors(reply: Reply) -> dict[str, Array]:
        return reply_tensors(reply) | text_tensors(reply, [b"text"] * len(reply.beams or [0]))


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[..., Server]]:
    servers: dict[tuple[str, str, str], Server] = {}

    def get(provider: str, field: str = "") -> Server:
        changes = NEEDS_OTHER_DEPLOYMENT.get(provider, {}).get(field, {})
        key = (provider, str(changes), field if field in _OF_A_FRESH_ENGINE else "")
        if key not in servers:
            servers[key] = Server(equipped_engine(provider, **changes))
        return servers[key]

    yield get
    for server in servers.values():
        server.engine.close()


# The table itself


def test_the_table_has_every_tensor_of_upstream_and_of_both_generations() -> None:
    names = [names_of(row) for row in (*input_rows(), *output_rows())]
    listed = {(model, name) for one in names for name, models in one.items() for model in models}
    upstream = {
        (model, name)
        for model in PYTHON_MODELS
        for direction in ("inputs", "outputs")
        for name in UPSTREAM.get(model, {}).get(direction, {})
    }
    assert {(model, name) for model, name in upstream if name not in MULTIMODAL} <= listed
    assert {("ensemble", name) for name in OLD_NAMES} <= listed
    ours = {(m, name) for m in PYTHON_MODELS for name, _ in (*inputs_of(m), *outputs_of(m))}
    assert ours == listed


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_can_or_says_why_not_for_every_parameter_of_the_seam(provider: str) -> None:
    capabilities = PROVIDERS[provider]
    fields = set(SamplingParams.__struct_fields__)
    assert capabilities.supported.isdisjoint(capabilities.why_not)
    assert capabilities.supported | (capabilities.why_not.keys() & fields) == fields
    outputs = {row.engine for row in output_rows()}
    assert capabilities.conditions.keys() <= capabilities.supported | outputs


@pytest.mark.parametrize("provider", [pytest.param(name, marks=MARKS.get(name, ())) for name in PROVIDERS])
def test_an_equipped_engine_refuses_what_the_table_says_and_nothing_else(
    server_of: Callable[..., Server], provider: str
) -> None:
    info = server_of(provider).engine.info
    alone = NEEDS_OTHER_DEPLOYMENT.get(provider, {}).keys()
    assert info.supported == PROVIDERS[provider].supported - alone
    assert {name: info.why_not[name] for name in PROVIDERS[provider].why_not} == PROVIDERS[provider].why_not
    assert info.supported.isdisjoint(info.why_not)


# Its cells


@pytest.mark.parametrize(("row", "provider"), CELLS)
def test_a_tensor_works_or_is_refused_as_the_table_says(
    server_of: Callable[..., Server], row: Tensor, provider: str
) -> None:
    server, key = server_of(provider, row.field), key_of(row)
    reason = why_refused(row, PROVIDERS[provider])
    if reason is None:
        tensors = server.tensors([*COMPANIONS.get(key, []), key], is_text=is_text(row))
        if key == "stop":
            assert server.decoder.decode(tensors).options.stop
        else:
            assert server.answer_to(tensors)["output_ids"].size > 0
        return
    alone = [key, *(name for name in COMPANIONS.get(key, []) if name.startswith("embedding_bias_w"))]
    if key == "context_phase_params":  # nobody here could have made any
        tensors = server.tensors([]) | {key: np.zeros((1, 3), dtype=np.uint8)}
    else:
        tensors = server.tensors(alone, is_text=is_text(row))
    with pytest.raises(RequestError) as refusal:
        server.answer_to(tensors)
    assert str(refusal.value).startswith("[INVALID_ARG ")
    assert refusal.value.facts["provider"] == provider
    known_as = {*names_of(row), row.field} | ({"embedding_bias_words"} if "bias" in key else set())
    assert refusal.value.facts["field"] in known_as
    assert reason in refusal.value.message


@pytest.mark.parametrize(("row", "provider"), OUTPUT_CELLS)
def test_an_output_is_there_or_not_as_the_table_says(
    server_of: Callable[..., Server], row: Tensor, provider: str
) -> None:
    server, name = server_of(provider, row.field), key_of(row)
    asking = {one.field: key for key, one in ROWS_BY_KEY.items() if one.field}.get(row.field, "input_ids")
    reason = why_refused(row, PROVIDERS[provider])
    if reason is None:
        is_context = name == "context_phase_params"
        tensors = server.tensors([]) if is_context else server.tensors([asking])
        if name == "batch_index":
            tensors = {given: np.concatenate([array, array]) for given, array in tensors.items()}
        assert server.answer_to(tensors, is_context_only=is_context)[name].size > 0
    elif row.field in PROVIDERS[provider].supported or row.field == "return_perf_metrics":
        assert name not in server.answer_to(server.tensors([asking]))
    else:
        with pytest.raises(RequestError):
            server.answer_to(server.tensors([]), is_context_only=True) if name == "context_phase_params" else (
                server.answer_to(server.tensors([asking]))
            )


def test_what_only_callers_of_the_steps_read_comes_from_the_first(server_of: Callable[..., Server]) -> None:
    server = server_of("simulated")
    outputs = server.prompt_step.respond({"QUERY": server.value("text_input"), "REQUEST_OUTPUT_LEN": np.array([[3]])})
    assert set(OF_PREPROCESSING) <= outputs.keys()


@pytest.mark.parametrize("row", BETWEEN_STEPS, ids=lambda row: row.postprocessing)
def test_what_goes_between_the_steps_is_taken_by_the_last(row: Tensor, server_of: Callable[..., Server]) -> None:
    server = server_of("simulated")
    answer = server.answer_to(server.tensors([], is_text=row.engine == "stream_state"))
    sent = {"TOKENS_BATCH": answer["output_ids"], row.postprocessing: answer[row.engine]}
    text_step = TextStep(TextDecoder.from_spec(tokenizer()))
    assert text_step.respond(sent).shape == (1,)


def without(provider: str) -> list[Any]:
    """For each condition of a provider a change of its deployment that takes it away."""
    changes: dict[str, dict[str, object]] = {
        "guided_decoding_backend": {"guided_decoding_backend": None, "tokenizer_dir": None},
        "engine.lora": {"lora": None},
        "cache_transceiver": {"cache_transceiver": None},
        "max_beam_width": {"max_beam_width": 1},
        "is_gathering_generation_logits": {"is_gathering_generation_logits": False},
        "is_gathering_context_logits": {"is_gathering_context_logits": False},
        "lookahead": {"speculation": None},
        "sampler": {"sampler": "torch"},
        "speculative decoding": {"draft_dir": DEMO_MODEL.parent / "draft", "is_prefix_caching": False},
        "without `engine.max_ngram_size`": DRAFTING,
        "with `engine.draft_dir`": {},
        "is_overlap_scheduler": {"is_overlap_scheduler": True},
        "MTP": {"speculation": {"method": "mtp"}, "sampler": "torch"},
    }
    conditions = PROVIDERS[provider].conditions.values()
    words = {one.words for one in conditions if one.why_not}
    return [
        pytest.param(provider, change, id=f"{provider}-{name}")
        for name, change in changes.items()
        if any(name in each for each in words)
    ]


@pytest.mark.parametrize(("provider", "change"), [case for provider in PROVIDERS for case in without(provider)])
def test_without_its_condition_a_tensor_is_refused_with_the_reason(provider: str, change: dict[str, object]) -> None:
    server = Server(equipped_engine(provider, **change))
    try:
        info = server.engine.info
        lost = PROVIDERS[provider].supported - info.supported
        assert lost
        rows = [row for row in SENT if row.field in lost and not is_text(row) and row.engine != "context_phase_params"]
        for row in rows:
            with pytest.raises(RequestError) as refusal:
                server.answer_to(server.tensors([key_of(row)]))
            assert info.why_not[row.field] in refusal.value.message
            assert condition_of(row, PROVIDERS[provider])
    finally:
        server.engine.close()
