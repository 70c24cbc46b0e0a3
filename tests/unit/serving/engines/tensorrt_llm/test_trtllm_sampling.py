# SPDX-License-Identifier: Apache-2.0
"""Every sampling parameter reaches upstream's argument for it, or is refused by name."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_tensorrt_llm import VOCAB_SIZE, fake_tensorrt_llm
from lora_adapters import write_adapter
from pydantic import TypeAdapter

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.seam.base import EngineInfo, GenerationRequest, SamplingParams
from serving.engines.seam.capabilities import BEAM_FIELDS, DISAGGREGATION_FIELDS, LOOKAHEAD_FIELDS
from serving.engines.seam.packed_array import PackedArray
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.engines.tensorrt_llm.trtllm_capabilities import CAPABILITIES
from serving.engines.tensorrt_llm.trtllm_sampling import SamplingWords
from serving.engines.tensorrt_llm.trtllm_upstream import Upstream, load_upstream
from trireme.base.errors import RequestError

END_IDS = (2, 3)
LOOKAHEAD = {"method": "lookahead", "window_size": 5, "ngram_size": 4, "verification_set_size": 3}
# All that each provider can do; a compiled engine tells no logits beside drafts, so LOOKAHEAD is none of it.
FULL: dict[str, dict[str, object]] = {
    "tensorrt": {
        "guided_decoding_backend": "xgrammar",
        "tokenizer_dir": "tok",
        "is_gathering_generation_logits": True,
        "is_gathering_context_logits": True,
        "max_beam_width": 4,
        "cache_transceiver": {},
    },
    "pytorch": {
        "guided_decoding_backend": "xgrammar",
        "tokenizer_dir": "tok",
        "sampler": "trtllm",
        "is_overlap_scheduler": False,
        "cache_transceiver": {},
    },
    "pytorch, torch": {"sampler": "torch"},
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of LoRA adapters with one for task 7, and one that has a name."""
    folder = tmp_path_factory.mktemp("lora")
    write_adapter(folder / "7")
    write_adapter(folder / "legal-en")
    return folder


def words_of(setup: str, adapters: Path | None = None, version: str = "1.2.1", **changes: Any) -> SamplingWords:
    """Return the translation for one of `FULL`, with LoRA where there are adapters."""
    provider = setup.partition(",")[0]
    data = {"provider": provider, "dir": "model"} | FULL[setup] | changes
    if adapters is not None:
        data["lora"] = {"dir": adapters}
    spec = TypeAdapter[EngineSpec](EngineSpec).validate_python(data)
    assert isinstance(spec, TensorRtEngineSpec | PyTorchEngineSpec)
    return SamplingWords(spec, upstream_of(provider, version), end_ids=END_IDS, vocab_size=VOCAB_SIZE)


def upstream_of(provider: str, version: str) -> Upstream:
    with fake_tensorrt_llm(version):
        return load_upstream({"tensorrt": "tensorrt_llm._tensorrt_engine", "pytorch": "tensorrt_llm"}[provider])


def call_of(words: SamplingWords, **sampling: Any) -> dict[str, Any]:
    """Return the call's arguments, after the check that every engine makes first."""
    return call_with(words, SamplingParams(**{"max_tokens": 9} | sampling))


def call_with(words: SamplingWords, sampling: SamplingParams) -> dict[str, Any]:
    request = GenerationRequest(key=1, input_ids=[5, 6], sampling=sampling)
    info = EngineInfo(
        provider="trtllm", vocab_size=VOCAB_SIZE, max_seq_len=99, end_ids=END_IDS, kv_block_tokens=32,
        num_kv_blocks=9, max_num_seqs=9, max_num_batched_tokens=64, supported=words.supported,
    )  # fmt: skip
    refuse_unservable(request, info)
    return words.call_arguments(request)


SAMPLED = {"top_k": 5, "temperature": 0.5}
ROWS = [
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"min_tokens": 4}, {"min_tokens": 4}),
    ({"min_tokens": 40}, {"min_tokens": 9}),
    ({"top_k": 5}, {"top_k": 5}),
    ({"top_p": 0.9}, {"top_p": 0.9, "top_k": None}),
    (SAMPLED, {"top_k": 5, "temperature": 0.5}),
    (SAMPLED | {"seed": 2**63}, {"seed": 2**63}),
    ({"top_p": 0.9, "top_p_min": 0.1}, {"top_p_min": 0.1}),
    ({"top_p": 0.9, "top_p_decay": 0.5}, {"top_p_decay": 0.5}),
    ({"top_p": 0.9, "top_p_reset_id": 8}, {"top_p_reset_ids": 8}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5, "top_k": 1}),
    ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    ({"frequency_penalty": -0.5}, {"frequency_penalty": -0.5}),
    ({"bad_words": ((4,), (9,))}, {"bad_token_ids": [4, 9]}),
    ({"return_log_probs": True}, {"logprobs": 1}),
    ({}, {"end_id": 2, "pad_id": 2, "stop_token_ids": [3], "include_stop_str_in_output": True, "ignore_eos": False}),
    ({"end_id": 8}, {"end_id": 8, "pad_id": 8, "stop_token_ids": None, "ignore_eos": False}),
    ({"end_id": -1}, {"end_id": -1, "pad_id": 0, "stop_token_ids": None, "ignore_eos": True}),
    ({}, {"top_k": 1, "top_p": None, "temperature": None, "seed": None, "detokenize": False, "n": 1, "logprobs": None}),
    ({"temperature": 0.0, "top_p": 0.9, "seed": 4}, {"top_k": 1, "top_p": None, "temperature": None, "seed": None}),
]


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch"])
@pytest.mark.parametrize(("sampling", "expected"), ROWS, ids=lambda value: ",".join(value) if value else "nothing")
def test_a_parameter_reaches_its_argument(setup: str, sampling: dict[str, Any], expected: dict[str, Any]) -> None:
    params = call_of(words_of(setup), **sampling)["sampling_params"]
    assert {name: getattr(params, name) for name in expected} == expected


GUIDES = [
    ("json", None, {"json_object": True}),
    ("json_schema", '{"type": "object"}', {"json": '{"type": "object"}'}),
    ("regex", "a+", {"regex": "a+"}),
    ("ebnf_grammar", "root ::= 'a'", {"grammar": "root ::= 'a'"}),
]


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch"])
@pytest.mark.parametrize(("guide_type", "guide", "expected"), GUIDES)
def test_a_guide_reaches_its_argument(
    setup: str, guide_type: str, guide: str | None, expected: dict[str, object]
) -> None:
    params = call_of(words_of(setup), guide_type=guide_type, guide=guide)["sampling_params"]
    assert {name: getattr(params.guided_decoding, name) for name in expected} == expected


def test_a_structural_tag_is_for_xgrammar_on_pytorch_only() -> None:
    guided = {"guide_type": "structural_tag", "guide": "{}"}
    assert call_of(words_of("pytorch"), **guided)["sampling_params"].guided_decoding.structural_tag == "{}"
    with pytest.raises(RequestError, match=r"guide_type \(structural_tag\) cannot be honoured .*'tensorrt'") as refusal:
        call_of(words_of("tensorrt"), **guided)
    assert refusal.value.facts["field"] == "guide_type"
    with pytest.raises(RequestError, match=r"guide_type \(structural_tag\) cannot be honoured"):
        call_of(words_of("pytorch", guided_decoding_backend="llguidance"), **guided)


def test_lookahead_of_a_request_reaches_its_argument() -> None:
    sampling = {"lookahead_window_size": 4, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 2}
    config = call_of(words_of("tensorrt", speculation=LOOKAHEAD), **sampling)["sampling_params"].lookahead_config
    assert (config.max_window_size, config.max_ngram_size, config.max_verification_set_size) == (4, 3, 2)


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch, torch"])
def test_an_adapter_is_asked_for_by_its_task_or_its_name(setup: str, adapters: Path) -> None:
    words = words_of(setup, adapters)
    by_task = call_of(words, lora_task_id=7)["lora_request"]
    assert (by_task.lora_name, by_task.lora_path) == ("7", str(adapters / "7"))
    by_name = call_of(words, lora_name="legal-en")["lora_request"]
    assert (by_name.lora_name, by_name.lora_path) == ("legal-en", str(adapters / "legal-en"))
    assert by_task.lora_int_id != by_name.lora_int_id
    assert call_of(words, lora_task_id=7)["lora_request"].lora_int_id == by_task.lora_int_id


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch", "pytorch, torch"])
def test_a_bias_is_a_tensor_over_the_vocabulary(setup: str) -> None:
    bias = call_of(words_of(setup), embedding_bias={3: 1.5, 5: -2.0})["sampling_params"].embedding_bias
    assert bias.dtype == "float32"
    assert len(bias.data) == VOCAB_SIZE
    assert {i: value for i, value in enumerate(bias.data) if value} == {3: 1.5, 5: -2.0}


def test_without_a_seed_each_request_gets_its_own() -> None:
    words = words_of("tensorrt")
    first, other = (call_of(words, **SAMPLED)["sampling_params"].seed for _ in range(2))
    assert first != other


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch"])
def test_beams_reach_their_arguments_and_come_whole(setup: str) -> None:
    search = {"beam_width": 3, "length_penalty": 0.5, "early_stopping": True, "beam_search_diversity_rate": 0.2}
    call = call_of(words_of(setup, max_beam_width=3), end_id=2, **search)
    params = call["sampling_params"]
    assert (params.use_beam_search, params.best_of, params.n, params.top_k, params.top_p) == (True, 3, 3, 1, None)
    assert (params.length_penalty, params.early_stopping, params.beam_search_diversity_rate) == (0.5, 1, 0.2)
    assert call["streaming"] is False


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch"])
@pytest.mark.parametrize("name", ["return_context_logits", "return_generation_logits"])
def test_logits_reach_their_arguments_and_come_whole(setup: str, name: str) -> None:
    call = call_of(words_of(setup), **{name: True})
    assert getattr(call["sampling_params"], name) is True
    assert call["streaming"] is False


@pytest.mark.parametrize("setup", FULL)
def test_what_is_to_be_kept_in_the_kv_cache_reaches_its_argument(setup: str) -> None:
    wish = {
        "retention_token_range_starts": (0, 32),
        "retention_token_range_ends": (32, -1),
        "retention_token_range_priorities": (80, 20),
        "retention_token_range_durations_ms": (500, -1),
        "retention_decode_priority": 5,
        "retention_decode_duration_ms": 70,
    }
    config = call_of(words_of(setup), **wish)["kv_cache_retention_config"]
    ranges = [
        (one.token_start, one.token_end, one.priority, one.duration_ms) for one in config.token_range_retention_configs
    ]
    assert ranges == [(0, 32, 80, timedelta(milliseconds=500)), (32, None, 20, None)]
    assert (config.decode_retention_priority, config.decode_duration_ms) == (5, timedelta(milliseconds=70))


@pytest.mark.parametrize("setup", ["tensorrt", "pytorch"])
def test_both_phases_of_disaggregated_serving_reach_their_argument(setup: str) -> None:
    call = call_of(words_of(setup), is_context_only=True)
    assert call["disaggregated_params"].request_type == "context_only"
    assert call["sampling_params"].max_tokens == 1
    packed = msgspec.msgpack.encode(([7], 12, b"state", None))
    phase = call_of(words_of(setup), context_phase_params=packed)["disaggregated_params"]
    told = (phase.request_type, phase.first_gen_tokens, phase.ctx_request_id, phase.opaque_state, phase.draft_tokens)
    assert told == ("generation_only", [7], 12, b"state", None)
    with pytest.raises(RequestError, match="context_phase_params is not what a context-only request was answered"):
        call_of(words_of(setup), context_phase_params=b"poem")


def test_a_prompt_goes_as_token_ids_and_streams() -> None:
    call = call_of(words_of("tensorrt"))
    assert call["inputs"] == {"prompt_token_ids": [5, 6]}
    assert call["streaming"] is True
    assert call.keys() == {"inputs", "sampling_params", "streaming"}


# What is refused


NEVER: dict[str, object] = {
    "draft_input_ids": (1, 2),
    "draft_acceptance_threshold": 0.5,
    "prompt_vocab_size": 7,
    "lora_config": PackedArray("int32", (1, 3), bytes(12)),
    "decoder_input_ids": (1, 2),
    "encoder_output_lengths": 3,
    "mrope_position_deltas": 5,
    "num_draft_tokens": 3,
    "use_draft_logits": True,
}
UNSUPPORTED = [
    *((setup, field, value) for setup in FULL for field, value in NEVER.items()),
    ("pytorch, torch", "seed", 7),
    ("pytorch, torch", "repetition_penalty", 1.5),
    ("pytorch, torch", "presence_penalty", 0.5),
    ("pytorch, torch", "frequency_penalty", 0.5),
    ("pytorch, torch", "top_p_min", 0.5),
    ("pytorch, torch", "top_p_decay", 0.5),
    ("pytorch, torch", "top_p_reset_id", 5),
    ("pytorch, torch", "bad_words", ((4,),)),
    ("pytorch, torch", "beam_width", 2),
    ("pytorch, torch", "length_penalty", 0.5),
    ("pytorch, torch", "is_context_only", True),
    ("pytorch, torch", "guide_type", "json"),
    ("pytorch", "lookahead_window_size", 3),
    ("pytorch", "lora_task_id", 7),
    ("tensorrt", "lora_task_id", 7),
    ("pytorch", "lora_name", "a"),
    ("tensorrt", "lora_name", "a"),
]


@pytest.mark.parametrize(("setup", "field", "value"), UNSUPPORTED)
def test_what_an_engine_cannot_do_is_refused_by_name(setup: str, field: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"{field} (\(.*\) )?is not supported by the provider") as refusal:
        call_of(words_of(setup), **{field: value})
    assert refusal.value.facts["field"] == field


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"is_gathering_generation_logits": False}, {"return_log_probs", "return_generation_logits"}),
        ({"max_beam_width": 1}, set(BEAM_FIELDS)),
        ({"cache_transceiver": None}, set(DISAGGREGATION_FIELDS)),
        ({"is_gathering_context_logits": False}, {"return_context_logits"}),
        ({"guided_decoding_backend": None, "tokenizer_dir": None}, {"guide", "guide_type"}),
        (
            {"speculation": LOOKAHEAD},
            {"return_log_probs", "return_generation_logits", "guide", "guide_type", *BEAM_FIELDS},
        ),
    ],
    ids=["generation logits", "beams", "disaggregation", "context logits", "guided decoding", "drafts"],
)
def test_what_an_engine_was_not_set_up_for_is_not_supported(changes: dict[str, Any], fields: set[str]) -> None:
    assert words_of("tensorrt").supported - words_of("tensorrt", **changes).supported == fields


REFUSALS: list[tuple[dict[str, object], str, str]] = [
    ({"bad_words": ((4, 5),)}, "bad_words", "only words of one token"),
    ({"embedding_bias": {VOCAB_SIZE: 1.0}}, "embedding_bias", "token ids of 0 to 4095"),
    ({"guide_type": "poem", "guide": "x"}, "guide_type", "json, json_schema, regex, ebnf_grammar"),
    ({"guide_type": "regex"}, "guide", "a guide with guide_type regex"),
    ({"guide_type": "json", "guide": "x"}, "guide", "none with guide_type json"),
    ({"guide": "x"}, "guide_type", "json, json_schema"),
    ({"lookahead_window_size": 3}, "lookahead_ngram_size", "a value, as the other two"),
    (
        {"lookahead_window_size": 6, "lookahead_ngram_size": 1, "lookahead_verification_set_size": 1},
        "lookahead_window_size",
        "at most 5, the engine's",
    ),
    ({"lora_task_id": 8}, "lora_task_id", "is no adapter in engine.lora.dir; there are 7, legal-en"),
    ({"lora_name": "legal"}, "lora_name", "is no adapter in engine.lora.dir; there are 7, legal-en"),
    ({"beam_width": 5}, "beam_width", "1 to 4, engine.max_beam_width"),
]


@pytest.mark.parametrize(("sampling", "field", "message"), REFUSALS, ids=lambda value: str(value)[:30])
def test_a_value_that_cannot_be_honoured_is_refused_with_field_and_provider(
    adapters: Path, sampling: dict[str, object], field: str, message: str
) -> None:
    words = words_of("tensorrt", adapters, speculation=LOOKAHEAD if field in LOOKAHEAD_FIELDS else None)
    with pytest.raises(RequestError, match=message) as refusal:
        call_of(words, **sampling)
    assert (refusal.value.facts["field"], refusal.value.facts["provider"]) == (field, "tensorrt")


@pytest.mark.parametrize(("sampling", "field"), [({"top_p": 0.9}, "top_p"), ({"top_k": 5}, "top_k")])
def test_sampling_beside_drafts_that_are_verified_greedily_is_refused(sampling: dict[str, Any], field: str) -> None:
    greedy, sampled = (
        words_of("tensorrt", speculation={"method": "eagle", "max_draft_len": 3, "is_greedy_sampling": is_greedy})
        for is_greedy in (True, False)
    )
    with pytest.raises(RequestError, match="greedy decoding") as refusal:
        call_of(greedy, **sampling)
    assert refusal.value.facts["field"] == field
    assert call_of(greedy, top_k=1)["sampling_params"].top_k == 1
    assert getattr(call_of(sampled, **sampling)["sampling_params"], field) == sampling[field]


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_a_fully_equipped_deployment_does_all_that_the_provider_can(provider: str, adapters: Path) -> None:
    words = words_of(provider, adapters, max_beam_width=4)  # with 'pytorch' every request must have so many
    assert words.supported == CAPABILITIES[provider].supported - {*LOOKAHEAD_FIELDS}


def test_sizes_of_lookahead_are_for_an_engine_that_drafts_so() -> None:
    with_it, without = words_of("tensorrt", speculation=LOOKAHEAD), words_of("tensorrt")
    assert with_it.supported - without.supported == {*LOOKAHEAD_FIELDS}


# What depends on the installed version


@pytest.mark.parametrize(
    ("priority", "passed_on"), [(Priority.PREMIUM, 1.0), (Priority.STANDARD, None), (Priority.BATCH, 0.0)]
)
def test_a_priority_class_is_passed_on_where_the_installed_version_has_priorities(
    priority: Priority, passed_on: float | None
) -> None:
    request = GenerationRequest(
        key=1, input_ids=[5], sampling=SamplingParams(max_tokens=1), scheduling=Scheduling(priority=priority)
    )
    assert words_of("pytorch, torch", version="1.3.0rc29").call_arguments(request).get("priority") == passed_on
    assert "priority" not in words_of("pytorch").call_arguments(request)


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
@pytest.mark.parametrize(
    ("tenant", "is_salted", "salt"), [("acme", True, "acme"), ("", True, None), ("acme", False, None)]
)
def test_a_tenant_reuses_its_own_kv_blocks_alone(tenant: str, is_salted: bool, salt: str | None, provider: str) -> None:
    sampling = SamplingParams(max_tokens=1)
    request = GenerationRequest(key=1, input_ids=[5], sampling=sampling, scheduling=Scheduling(tenant=tenant))
    words = words_of(provider, is_cache_salted=is_salted)
    assert words.call_arguments(request).get("cache_salt") == salt


def test_the_one_sampler_of_a_later_version_takes_what_needed_the_other() -> None:
    words = words_of("pytorch, torch", version="1.3.0rc29")
    assert call_of(words, presence_penalty=0.5, bad_words=((4,),))["sampling_params"].presence_penalty == 0.5
    assert call_of(words, top_p=0.9, top_p_decay=0.5)["sampling_params"].seed is None
    for refused in ({"top_p": 0.9, "seed": 4}, {"beam_search_diversity_rate": 0.5}):
        with pytest.raises(RequestError, match="is not supported by the provider"):
            call_of(words, **refused)
    assert "TorchSampler of 1.3.0rc29 samples all by the seed of the first" in words.why_not["seed"]
    assert "set engine.sampler: trtllm" in words_of("pytorch, torch").why_not["presence_penalty"]


@pytest.fixture
def older() -> Upstream:
    """Return an installation whose SamplingParams know no presence_penalty."""
    upstream = upstream_of("tensorrt", "1.2.1")
    arguments = upstream.sampling_arguments - {"presence_penalty"}
    return Upstream(**{**vars(upstream), "sampling_arguments": arguments})


def test_a_parameter_that_the_installed_version_lacks_is_not_supported(older: Upstream) -> None:
    spec = TensorRtEngineSpec(provider="tensorrt", dir=Path("model"))
    words = SamplingWords(spec, older, end_ids=END_IDS, vocab_size=VOCAB_SIZE)
    assert words_of("tensorrt").supported - words.supported >= {"presence_penalty"}
    with pytest.raises(RequestError, match="presence_penalty"):
        call_of(words, presence_penalty=0.5)
