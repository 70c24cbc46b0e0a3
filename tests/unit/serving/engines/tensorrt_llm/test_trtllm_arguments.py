# SPDX-License-Identifier: Apache-2.0
"""Every setting of the two TensorRT-LLM providers reaches the argument of upstream that it is for."""

import threading
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import trtllm_behaviour
from demo_release import write_gpu_release
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from lora_adapters import write_adapter
from pydantic import BaseModel, TypeAdapter, ValidationError
from trtllm_behaviour import Executor

from ensemble_configs.releases.release_parts import ReleaseLimits
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.speculation_specs import (
    DraftTargetSpec,
    Eagle3Spec,
    EagleSpec,
    LookaheadSpec,
    MedusaSpec,
    MtpSpec,
    NGramSpec,
)
from ensemble_configs.spec.engine.tensorrt_llm_specs import (
    CacheTransceiverSpec,
    PyTorchEngineSpec,
    TensorRtEngineSpec,
)
from serving.engines.providers import create_engine
from serving.engines.tensorrt_llm.trtllm_upstream import load_upstream
from trireme.base.errors import SpecError


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `engine`, `engine_tp2_pp2` and `checkpoint`, a draft and LoRA adapters 1 and 7."""
    root = tmp_path_factory.mktemp("models")
    write_engine(root / "engine", max_beam_width=4)
    write_engine(root / "engine_tp2_pp2", world_size=4, tp_size=2)
    write_checkpoint(root / "checkpoint")
    (root / "draft").mkdir()
    for task_id in ("1", "7"):
        write_adapter(root / "lora" / task_id)
    return root


def args_of(folders: Path, provider: str, settings: dict[str, object]) -> Any:
    """Return the arguments that upstream has made of a spec."""
    model = {"tensorrt": "engine", "pytorch": "checkpoint"}[provider]
    data: dict[str, object] = {"provider": provider, "dir": folders / model} | settings
    spec = TypeAdapter[EngineSpec](EngineSpec).validate_python(data, context={"base_dir": folders})
    with fake_tensorrt_llm():
        create_engine(spec).close()
    return Executor.created[-1].args


COMMON = [
    ("max_num_seqs", 16, "max_batch_size", 16),
    ("max_num_batched_tokens", 1024, "max_num_tokens", 1024),
    ("max_seq_len", 1500, "max_seq_len", 1500),
    ("max_seq_len", 1500, "max_input_len", 1500),
    ("gpus_per_node", 4, "gpus_per_node", 4),
    ("num_kv_blocks", 100, "kv_cache_config.max_tokens", 3200),
    ("num_kv_blocks", None, "kv_cache_config.max_tokens", None),
    ("free_gpu_memory_fraction", 0.5, "kv_cache_config.free_gpu_memory_fraction", 0.5),
    ("host_cache_bytes", 2**30, "kv_cache_config.host_cache_size", 2**30),
    ("host_cache_bytes", 0, "kv_cache_config.host_cache_size", None),
    ("is_block_reuse", False, "kv_cache_config.enable_block_reuse", False),
    ("is_partial_block_reuse", False, "kv_cache_config.enable_partial_reuse", False),
    ("max_attention_window", [512, 1024], "kv_cache_config.max_attention_window", [512, 1024]),
    ("sink_tokens", 4, "kv_cache_config.sink_token_length", 4),
    ("is_chunked_prefill", False, "enable_chunked_prefill", False),
    ("capacity_scheduler_policy", "max_utilization", "scheduler_config.capacity_scheduler_policy", "MAX_UTILIZATION"),
    ("context_chunking_policy", "equal_progress", "scheduler_config.context_chunking_policy", "EQUAL_PROGRESS"),
    ("lora", {"dir": "lora"}, "enable_lora", True),
    ("lora", None, "enable_lora", False),
    ("max_beam_width", 3, "max_beam_width", 3),
    (
        "cache_transceiver",
        {"backend": "nixl", "max_buffer_tokens": 9, "transfer_timeout_ms": 8},
        "cache_transceiver_config",
        {
            "backend": "NIXL",
            "max_tokens_in_buffer": 9,
            "kv_transfer_timeout_ms": 8,
            "kv_transfer_sender_future_timeout_ms": 1000,
        },
    ),
]
KNOBS = {
    "multi_block_mode": True,
    "enable_context_fmha_fp32_acc": False,
    "cuda_graph_mode": False,
    "cuda_graph_cache_size": 0,
}
TENSORRT = [
    ("is_gathering_generation_logits", True, "gather_generation_logits", True),
    ("is_normalizing_log_probs", True, "normalize_log_probs", True),
    ("perf_knobs", {}, "extended_runtime_perf_knob_config", KNOBS),
    (
        "perf_knobs",
        {"is_multi_block": False, "is_context_fmha_fp32_acc": True, "is_cuda_graph": True, "cuda_graph_cache_size": 9},
        "extended_runtime_perf_knob_config",
        {
            "multi_block_mode": False,
            "enable_context_fmha_fp32_acc": True,
            "cuda_graph_mode": True,
            "cuda_graph_cache_size": 9,
        },
    ),
]
PYTORCH = [
    ("tp_size", 4, "tensor_parallel_size", 4),
    ("pp_size", 2, "pipeline_parallel_size", 2),
    ("cp_size", 2, "context_parallel_size", 2),
    ("is_attention_dp", True, "enable_attention_dp", True),
    ("kv_cache_dtype", "fp8", "kv_cache_config.dtype", "fp8"),
    ("kv_block_tokens", 64, "kv_cache_config.tokens_per_block", 64),
    ("sampler", "torch", "sampler_type", "TorchSampler"),
    ("sampler", "trtllm", "sampler_type", "TRTLLMSampler"),
    ("moe_backend", "wideep", "moe_config.backend", "WIDEEP"),
    ("is_cuda_graph", False, "cuda_graph_config", None),
    ("is_overlap_scheduler", False, "disable_overlap_scheduler", True),
]
BEAMS_BESIDE: dict[tuple[str, str], dict[str, object]] = {  # what the setting does not go without
    ("pytorch", "max_beam_width"): {"sampler": "trtllm", "is_overlap_scheduler": False},
}
CASES = [
    pytest.param(provider, *case, id=f"{provider}-{case[0]}={case[1]}")
    for provider, cases in (("tensorrt", COMMON + TENSORRT), ("pytorch", COMMON + PYTORCH))
    for case in cases
]


@pytest.mark.parametrize(("provider", "field", "value", "argument", "expected"), CASES)
def test_a_setting_reaches_its_argument(
    folders: Path, provider: str, field: str, value: object, argument: str, expected: object
) -> None:
    args = args_of(folders, provider, {field: value} | BEAMS_BESIDE.get((provider, field), {}))
    reached = reduce(getattr, argument.split("."), args)
    assert (reached.model_dump() if isinstance(reached, BaseModel) else reached) == expected


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"is_overlap_scheduler": False}, r"max_beam_width \(4\) needs sampler: trtllm"),
        ({"sampler": "trtllm"}, r"max_beam_width \(4\) needs is_overlap_scheduler: false"),
    ],
)
def test_beams_on_pytorch_need_the_sampler_that_has_them_and_no_overlap(
    beside: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        PyTorchEngineSpec.model_validate({"provider": "pytorch", "dir": "x", "max_beam_width": 4} | beside)


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_guides_do_not_go_with_a_scheduler_that_pauses_requests(provider: str) -> None:
    engine = {"provider": provider, "dir": "x", "guided_decoding_backend": "xgrammar", "tokenizer_dir": "x"}
    adapter: TypeAdapter[EngineSpec] = TypeAdapter(EngineSpec)
    adapter.validate_python(engine)
    with pytest.raises(ValidationError, match=r"begins the grammar of a request anew .*use guaranteed_no_evict"):
        adapter.validate_python(engine | {"capacity_scheduler_policy": "max_utilization"})


def test_expert_parallel_sizes_divide_tensor_parallel_ranks(folders: Path) -> None:
    args = args_of(folders, "pytorch", {"tp_size": 4, "ep_size": 2, "moe_tp_size": 2})
    assert (args.moe_expert_parallel_size, args.moe_tensor_parallel_size) == (2, 2)
    with pytest.raises(ValidationError, match=r"ep_size \(4\) \* moe_tp_size \(2\) must divide tp_size \(4\)"):
        PyTorchEngineSpec.model_validate(
            {"provider": "pytorch", "dir": "x", "tp_size": 4, "ep_size": 4, "moe_tp_size": 2}
        )


def test_an_engine_of_four_ranks_is_loaded_as_it_was_built(folders: Path) -> None:
    args = args_of(folders, "tensorrt", {"dir": folders / "engine_tp2_pp2", "tp_size": 2, "pp_size": 2})
    assert (args.tensor_parallel_size, args.pipeline_parallel_size) == (2, 2)


@pytest.mark.parametrize(
    ("provider", "backend"), [("tensorrt", "xgrammar"), ("pytorch", "xgrammar"), ("pytorch", "llguidance")]
)
def test_guided_decoding_brings_its_tokenizer(folders: Path, provider: str, backend: str) -> None:
    settings = {"guided_decoding_backend": backend, "tokenizer_dir": folders / "tokenizer"}
    args = args_of(folders, provider, settings)
    assert (args.guided_decoding_backend, args.tokenizer, args.skip_tokenizer_init) == (
        backend,
        str(folders / "tokenizer"),
        False,
    )


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
@pytest.mark.parametrize("alone", [{"guided_decoding_backend": "xgrammar"}, {"tokenizer_dir": "x"}])
def test_guided_decoding_and_a_tokenizer_go_together(folders: Path, provider: str, alone: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="go together"):
        args_of(folders, provider, alone)


def settings_of_lora() -> dict[str, object]:
    return {
        "dir": "lora",
        "max_rank": 8,
        "target_modules": ["attn_q", "attn_v"],
        "max_device_adapters": 2,
        "max_host_adapters": 3,
    }


def test_the_modules_of_the_adapters_that_are_there_are_those_of_the_engine(folders: Path) -> None:
    config = args_of(folders, "pytorch", {"lora": {"dir": "lora"}}).lora_config
    assert config.lora_target_modules == ["attn_k", "attn_q", "attn_v"]


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_lora_settings_reach_their_arguments(folders: Path, provider: str) -> None:
    config = args_of(folders, provider, {"lora": settings_of_lora()}).lora_config
    assert config.lora_dir == [], "of several upstream would take no modules, of one the modules of that one"
    assert (config.max_lora_rank, config.lora_target_modules) == (8, ["attn_k", "attn_q", "attn_v"])
    assert (config.max_loras, config.max_cpu_loras) == (2, 3)


SPECULATION: dict[str, tuple[dict[str, object], str, dict[str, object]]] = {
    "lookahead": (
        {"window_size": 5, "ngram_size": 4, "verification_set_size": 3},
        "LookaheadDecodingConfig",
        {"max_window_size": 5, "max_ngram_size": 4, "max_verification_set_size": 3},
    ),
    "medusa": (
        {"max_draft_len": 6, "num_heads": 4, "choices": [[0], [0, 1]]},
        "MedusaDecodingConfig",
        {"max_draft_len": 6, "num_medusa_heads": 4, "medusa_choices": [[0], [0, 1]]},
    ),
    "eagle": (
        {
            "max_draft_len": 6,
            "num_layers": 4,
            "choices": [[0], [1]],
            "is_greedy_sampling": False,
            "posterior_threshold": 0.1,
            "is_dynamic_tree": True,
            "dynamic_tree_max_top_k": 7,
        },
        "EagleDecodingConfig",
        {
            "max_draft_len": 6,
            "num_eagle_layers": 4,
            "eagle_choices": [[0], [1]],
            "greedy_sampling": False,
            "posterior_threshold": 0.1,
            "use_dynamic_tree": True,
            "dynamic_tree_max_topK": 7,
        },
    ),
    "ngram": (
        {
            "max_draft_len": 3,
            "max_matching_ngram_size": 2,
            "is_keeping_all": False,
            "is_using_oldest": False,
            "is_public_pool": False,
        },
        "NGramDecodingConfig",
        {
            "max_draft_len": 3,
            "max_matching_ngram_size": 2,
            "is_keep_all": False,
            "is_use_oldest": False,
            "is_public_pool": False,
        },
    ),
    "mtp": (
        {
            "num_nextn_predict_layers": 2,
            "is_vanilla": True,
            "is_relaxed_for_thinking": True,
            "relaxed_top_k": 3,
            "relaxed_delta": 0.2,
        },
        "MTPDecodingConfig",
        {
            "num_nextn_predict_layers": 2,
            "use_mtp_vanilla": True,
            "use_relaxed_acceptance_for_thinking": True,
            "relaxed_topk": 3,
            "relaxed_delta": 0.2,
            "allow_advanced_sampling": True,
        },
    ),
    "eagle3": (
        {"dir": "draft", "max_draft_len": 3, "is_one_model": False},
        "EagleDecodingConfig",
        {
            "speculative_model": "{folders}/draft",
            "max_draft_len": 3,
            "eagle3_one_model": False,
            "allow_advanced_sampling": True,
        },
    ),
    "draft_target": (
        {"dir": "draft", "max_draft_len": 3},
        "DraftTargetDecodingConfig",
        {"speculative_model": "{folders}/draft", "max_draft_len": 3},
    ),
}


@pytest.mark.parametrize("method", SPECULATION)
def test_every_setting_of_speculation_reaches_its_argument(folders: Path, method: str) -> None:
    settings, name, expected = SPECULATION[method]
    provider = "tensorrt" if method in ("lookahead", "medusa", "eagle") else "pytorch"
    config = args_of(folders, provider, {"speculation": {"method": method} | settings}).speculative_config
    assert type(config).__name__ == name
    reached = {argument: getattr(config, argument) for argument in expected}
    wanted = {
        key: value.format(folders=folders) if isinstance(value, str) else value for key, value in expected.items()
    }
    assert reached == wanted
    assert config.model_fields_set == set(expected)


def _with_folders(value: object, folders: Path) -> object:
    return value.format(folders=folders) if isinstance(value, str) else value


def test_no_setting_is_without_a_case() -> None:
    tested = {case[0] for case in COMMON}
    elsewhere = {"provider", "dir", "tp_size", "pp_size", "tokenizer_dir", "guided_decoding_backend", "speculation"}
    elsewhere |= {"watchdog_s", "load_timeout_s", "launcher"}  # for the process around the engine
    elsewhere |= {"tensorrt_llm", "extra_llm_args"}  # for the check of names; test_extra_llm_args
    elsewhere |= {"is_cache_salted"}  # of each call; test_trtllm_sampling
    assert set(TensorRtEngineSpec.model_fields) == tested | {case[0] for case in TENSORRT} | elsewhere | {
        "end_ids",
        "is_gathering_context_logits",  # of the engine as it was built
    }
    assert set(PyTorchEngineSpec.model_fields) == tested | {case[0] for case in PYTORCH} | elsewhere | {
        "ep_size",
        "moe_tp_size",
    }
    specs: tuple[type[BaseModel], ...] = (
        LookaheadSpec,
        MedusaSpec,
        EagleSpec,
        NGramSpec,
        MtpSpec,
        Eagle3Spec,
        DraftTargetSpec,
    )
    for spec, (settings, _, _) in zip(specs, SPECULATION.values(), strict=True):
        assert set(spec.model_fields) == {"method", *settings}
    assert set(LoraSpec.model_fields) == {*settings_of_lora(), "max_adapters"}
    assert len(CacheTransceiverSpec.model_fields) == 3


def test_the_seam_is_served_with_token_ids_and_stats(folders: Path) -> None:
    tensorrt, pytorch = args_of(folders, "tensorrt", {}), args_of(folders, "pytorch", {})
    assert (tensorrt.model, pytorch.model) == (str(folders / "engine"), str(folders / "checkpoint"))
    assert tensorrt.skip_tokenizer_init
    assert pytorch.skip_tokenizer_init
    assert tensorrt.iter_stats_max_iterations == 1000
    assert pytorch.enable_iter_perf_stats
    assert pytorch.cuda_graph_config is not None, "upstream's own default"


@pytest.mark.parametrize(
    ("provider", "settings"),
    [
        ("tensorrt", {"speculation": {"method": "ngram", "max_draft_len": 2, "max_matching_ngram_size": 2}}),
        ("pytorch", {"speculation": {"method": "medusa", "max_draft_len": 2, "num_heads": 2}}),
        ("tensorrt", {"guided_decoding_backend": "llguidance", "tokenizer_dir": "x"}),
    ],
)
def test_what_a_provider_does_not_decode_with_is_refused_by_its_spec(
    folders: Path, provider: str, settings: dict[str, object]
) -> None:
    with pytest.raises(ValidationError, match=r"speculation|guided_decoding_backend"):
        args_of(folders, provider, settings)


def test_the_trtllm_sampler_does_not_speculate(folders: Path) -> None:
    speculation = {"method": "mtp"}
    with pytest.raises(ValidationError, match="sampler trtllm knows no speculation"):
        args_of(folders, "pytorch", {"sampler": "trtllm", "speculation": speculation})


def test_world_size_is_all_gpus_of_the_engine() -> None:
    sizes = {"tp_size": 4, "pp_size": 2}
    assert TensorRtEngineSpec(provider="tensorrt", dir=Path("x"), **sizes).world_size == 8  # type: ignore[arg-type]
    assert PyTorchEngineSpec(provider="pytorch", dir=Path("x"), cp_size=2, **sizes).world_size == 16  # type: ignore[arg-type]


def test_defaults_of_a_step_are_upstreams_or_what_was_built(folders: Path, tmp_path: Path) -> None:
    built, plain = args_of(folders, "tensorrt", {}), args_of(folders, "pytorch", {})
    assert (built.max_batch_size, built.max_num_tokens) == (64, 8192), "as the engine was built"
    assert (plain.max_batch_size, plain.max_num_tokens) == (2048, 8192)
    versions = {"tensorrt_llm": "1.2.1"}
    limits = ReleaseLimits(max_batch_size=32, max_num_tokens=1024, max_seq_len=2048)
    release = write_gpu_release(tmp_path / "release", provider="pytorch", versions=versions, limits=limits)
    write_checkpoint(release / "engine")
    of_release = args_of(folders, "pytorch", {"dir": release / "engine"})
    assert (of_release.max_batch_size, of_release.max_num_tokens) == (32, 1024), "as its manifest says"


# What an engine folder must have


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_len": 2049}, r"engine.max_seq_len \(2049\) is more than .* was built for \(2048\)"),
        ({"max_num_seqs": 65}, r"engine.max_num_seqs \(65\) is more than .* was built for \(64\)"),
        ({"max_num_batched_tokens": 8193}, r"engine.max_num_batched_tokens \(8193\)"),
        ({"max_beam_width": 5}, r"engine.max_beam_width \(5\) is more than .* was built for \(4\)"),
        ({"is_gathering_context_logits": True}, r"engine.is_gathering_context_logits \(True\) is more than"),
        ({"tp_size": 2}, r"engine.tp_size \(2\) differs from 1"),
        ({"pp_size": 2}, r"engine.pp_size \(2\) differs from 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_spec_that_asks_for_more_than_was_built_is_refused(
    folders: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        args_of(folders, "tensorrt", settings)


def test_an_engine_for_shorter_prompts_is_refused(tmp_path: Path, folders: Path) -> None:
    short = write_engine(tmp_path / "short", max_input_len=1024, plugin_config={"remove_input_padding": False})
    with pytest.raises(
        SpecError, match=r"engine.max_seq_len \(2048, the default: .*\) is more than .* was built for \(1024\)"
    ):
        args_of(folders, "tensorrt", {"dir": short})
    assert args_of(folders, "tensorrt", {"dir": short, "max_seq_len": 1025}).max_seq_len == 1025


def test_a_default_engine_takes_any_prompt_whatever_its_max_input_len(tmp_path: Path, folders: Path) -> None:
    # trtllm-build writes 1024 where nobody says; with packed input and context FMHA the runtime does not read it.
    default = write_engine(tmp_path / "default", max_input_len=1024)
    assert args_of(folders, "tensorrt", {"dir": default}).max_seq_len == 2048


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("config.json", "has no config.json; build the engine with trtllm-build"),
        ("rank0.engine", "has no rank0.engine, but the engine is of 1 ranks"),
        ("generation_config.json", "engine.end_ids is not set"),
    ],
)
def test_an_engine_folder_without_a_part_is_refused(engine: Path, folders: Path, lost: str, message: str) -> None:
    (engine / lost).unlink()
    with pytest.raises(SpecError, match=message):
        args_of(folders, "tensorrt", {"dir": engine})


def test_end_tokens_of_the_spec_are_enough(engine: Path, folders: Path) -> None:
    (engine / "generation_config.json").unlink()
    assert args_of(folders, "tensorrt", {"dir": engine, "end_ids": [5]})


def test_an_engine_config_that_is_none_is_refused(engine: Path, folders: Path) -> None:
    (engine / "config.json").write_text('{"pretrained_config": {}}')
    with pytest.raises(SpecError, match=r"config.json: .*vocab_size"):
        args_of(folders, "tensorrt", {"dir": engine})


def test_a_checkpoint_for_shorter_sequences_is_refused(tmp_path: Path, folders: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "short", max_position_embeddings=512)
    with pytest.raises(
        SpecError, match=r"engine.max_seq_len \(2048, the default: .*\) > max_position_embeddings \(512\)"
    ):
        args_of(folders, "pytorch", {"dir": checkpoint})


def test_what_upstream_cannot_load_is_named(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("CUDA out of memory:\n tried to allocate 2 GiB")

    monkeypatch.setattr(trtllm_behaviour, "check_args", fail)
    message = r"TensorRT-LLM 1.2.1 cannot load .*checkpoint: CUDA out of memory: tried to allocate 2 GiB"
    threads = set(threading.enumerate())
    with pytest.raises(SpecError, match=message):
        args_of(folders, "pytorch", {})
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("WarpConfig", {}, "TensorRT-LLM 1.2.1 has no WarpConfig"),
        ("KvCacheConfig", {"warp": 9}, "TensorRT-LLM 1.2.1 refuses KvCacheConfig: .*warp Extra inputs"),
    ],
    ids=["no-such-class", "no-such-argument"],
)
def test_a_part_that_the_installed_version_does_not_know_is_named(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with fake_tensorrt_llm():
        upstream = load_upstream("tensorrt_llm")
    with pytest.raises(SpecError, match=message):
        upstream.make_config(name, **arguments)
