# SPDX-License-Identifier: Apache-2.0
"""Tests of what the OpenVINO engine adds to the conformance of every engine: its parameters and OpenVINO's own ways."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino import openvino_pipeline
from serving.engines.openvino.openvino_pipeline import Handle, Pipeline, has_bf16
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams, TokenChunk
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO_MODEL = CODE_ROOT / "examples/demo_model/openvino/target"
PROMPT = list(range(100, 164))  # two blocks


def spec_of(**changes: object) -> OpenVinoEngineSpec:
    limits = {"max_seq_len": 512, "max_num_seqs": 4, "num_kv_blocks": 20, "num_threads": 1}
    return OpenVinoEngineSpec.model_validate({"provider": "openvino", "dir": DEMO_MODEL} | limits | changes)


def config_of(max_tokens: int = 8, **sampling: float | None) -> object:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return openvino_pipeline.generation_config(params, end_ids=(1,), vocab_size=4096)


def attributes_of(config: object, *names: str) -> dict[str, object]:
    return {name: getattr(config, name) for name in names}


# Parameters


def test_the_default_is_greedy_until_the_models_end_token() -> None:
    assert attributes_of(
        config_of(), "do_sample", "max_new_tokens", "min_new_tokens", "ignore_eos", "eos_token_id", "stop_token_ids"
    ) == {
        "do_sample": False,
        "max_new_tokens": 8,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "eos_token_id": 1,
        "stop_token_ids": {1},
    }


def test_sampling_parameters_have_openvinos_names_and_values() -> None:
    config = config_of(temperature=0.5, top_k=40, top_p=0.75, seed=2**64 - 1, min_tokens=3)
    assert attributes_of(config, "do_sample", "temperature", "top_k", "top_p", "rng_seed", "min_new_tokens") == {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.75,
        "rng_seed": 2**64 - 1,
        "min_new_tokens": 3,
    }


def test_unset_parameters_are_off() -> None:
    assert attributes_of(config_of(top_k=40), "top_p") == {"top_p": 1.0}
    assert attributes_of(config_of(top_p=0.5), "top_k") == {"top_k": 2**64 - 1}


def test_requests_without_a_seed_get_seeds_of_their_own() -> None:
    configs = [config_of(top_p=0.9) for _ in range(2)]
    assert attributes_of(configs[0], "rng_seed") != attributes_of(configs[1], "rng_seed")


def test_an_end_id_replaces_the_models_own() -> None:
    assert attributes_of(config_of(end_id=7), "eos_token_id", "stop_token_ids", "ignore_eos") == {
        "eos_token_id": 7,
        "stop_token_ids": {7},
        "ignore_eos": False,
    }


@pytest.mark.parametrize("end_id", [-1, 4096])
def test_an_end_id_outside_the_vocabulary_is_none_and_never_reaches_the_logits(end_id: int) -> None:
    # OpenVINO writes to the logits at every end token until min_new_tokens; outside the vocabulary it crashes.
    assert attributes_of(config_of(end_id=end_id, min_tokens=5), "ignore_eos", "min_new_tokens", "stop_token_ids") == {
        "ignore_eos": True,
        "min_new_tokens": 0,
        "stop_token_ids": {0},
    }


def test_penalties_count_in_greedy_generation_too() -> None:
    config = config_of(repetition_penalty=1.5, presence_penalty=-2.0, frequency_penalty=0.25)
    assert attributes_of(config, "do_sample", "repetition_penalty", "presence_penalty", "frequency_penalty") == {
        "do_sample": False,
        "repetition_penalty": 1.5,
        "presence_penalty": -2.0,
        "frequency_penalty": 0.25,
    }


# Loading


def test_a_max_seq_len_beyond_the_models_positions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "max_position_embeddings": 256}))
    with pytest.raises(SpecError, match=r"engine.max_seq_len \(512\) > max_position_embeddings \(256\)"):
        create_engine(spec_of(dir=tmp_path))


def write_adapter(path: Path, *, scale: float) -> Path:
    """Write a low-rank adapter of the demo model's query projections, as PEFT names them.

    A safetensors file is a JSON head and the numbers.
    """
    rng, head, data = np.random.default_rng(0), {}, b""
    for layer in range(5):
        for part, shape in (("lora_A", (4, 256)), ("lora_B", (256, 4))):
            numbers = (rng.standard_normal(shape) * scale).astype(np.float32).tobytes()
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight"
            head[name] = {"dtype": "F32", "shape": shape, "data_offsets": (len(data), len(data) + len(numbers))}
            data += numbers
    packed = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data)
    return path


def test_the_deployments_adapter_changes_what_all_requests_get(tmp_path: Path) -> None:
    outputs = []
    for scale in (None, 0.0, 0.5):
        adapter = {} if scale is None else {"lora_file": write_adapter(tmp_path / f"{scale}.safetensors", scale=scale)}
        engine = create_engine(spec_of(**adapter))
        outputs.append([tokens_of(engine, [20, 30, 40]), tokens_of(engine, [50, 60])])
        engine.close()
    plain, with_nothing, adapted = outputs
    assert plain == with_nothing
    assert all(one != other for one, other in zip(plain, adapted, strict=True))


def test_an_adapter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="OpenVINO cannot load"):
        create_engine(spec_of(lora_file=tmp_path / "none.safetensors"))


def test_a_model_that_openvino_cannot_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("not a model")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "max_position_embeddings": 2048}))
    with pytest.raises(SpecError, match=r"OpenVINO cannot load .*") as refusal:
        create_engine(spec_of(dir=tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("precision", ["u8", "u4", "f16", "bf16"])
def test_every_kv_cache_precision_generates(precision: str) -> None:
    if precision == "bf16" and not has_bf16():
        with pytest.raises(SpecError, match="kv_cache_precision: this CPU has no bf16 instructions; set auto"):
            create_engine(spec_of(kv_cache_precision=precision))
        return
    engine = create_engine(spec_of(kv_cache_precision=precision))
    assert len(tokens_of(engine, PROMPT)) == 8
    engine.close()


def test_in_accuracy_mode_an_answer_does_not_depend_on_the_requests_beside_it() -> None:
    engine = create_engine(spec_of(execution_mode="accuracy", max_num_seqs=8, num_kv_blocks=64))
    prompts = [[*PROMPT, number] for number in range(100, 108)]
    alone = [of_each[0] for of_each in (tokens_and_log_probs(engine, [prompt]) for prompt in prompts)]
    together = tokens_and_log_probs(engine, prompts)
    engine.close()
    assert [ids for ids, _ in together] == [ids for ids, _ in alone]
    for (_, found), (_, expected) in zip(together, alone, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)


def tokens_and_log_probs(engine: Engine, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Return what an engine says to prompts that it has at the same time."""
    for key, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=12, top_k=1, return_log_probs=True)
        engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
    said: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    while engine.has_work:
        for chunk in engine.step():
            said[chunk.key][0].extend(chunk.token_ids)
            said[chunk.key][1].extend(chunk.log_probs or ())
    return said


def test_the_cache_of_accuracy_mode_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="execution_mode: accuracy has a KV cache of f32; leave kv_cache_precision at"):
        spec_of(execution_mode="accuracy", kv_cache_precision="u8")


def test_a_model_with_neither_tokenizer_nor_end_token_can_be_served(tmp_path: Path) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copy(DEMO_MODEL / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 4096, "max_position_embeddings": 2048}))
    engine = create_engine(spec_of(dir=tmp_path))
    assert engine.info.end_ids == ()
    assert len(tokens_of(engine, PROMPT, end_id=None)) == 8
    engine.close()


# Prefix caching


def tokens_of(engine: Engine, prompt: list[int], end_id: int | None = -1) -> list[int]:
    sampling = SamplingParams(max_tokens=8, end_id=end_id)
    engine.add(GenerationRequest(key=1, input_ids=prompt, sampling=sampling))
    chunks: list[TokenChunk] = []
    while engine.has_work:
        chunks += engine.step()
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


def test_blocks_kept_for_reuse_count_as_free_and_save_prefill() -> None:
    engine = create_engine(spec_of(max_num_batched_tokens=32))
    long = PROMPT * 5  # ten blocks, ten steps of prefill
    tokens_of(engine, long)
    assert engine.stats().num_used_kv_blocks == 0
    num_cold_steps = engine.stats().num_steps
    tokens_of(engine, long)
    num_warm_steps = engine.stats().num_steps - num_cold_steps
    assert (num_cold_steps, num_warm_steps) == (10 + 7, 1 + 7)
    engine.close()


# OpenVINO's own ways


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    """Yield the bare pipeline, emptied afterwards."""
    loaded = openvino_pipeline.load_pipeline(spec_of(max_num_seqs=2, is_prefix_caching=False))
    yield loaded
    loaded.step()


def start(pipeline: Pipeline, key: int, num_prompt_tokens: int, max_tokens: int) -> Handle:
    tokens = openvino_pipeline.token_tensor([(7 * i + key) % 4000 + 20 for i in range(num_prompt_tokens)])
    return pipeline.add_request(key, tokens, config_of(max_tokens, end_id=-1))


def test_openvino_runs_more_requests_than_max_num_seqs(pipeline: Pipeline) -> None:
    handles = [start(pipeline, key, 10, 5) for key in range(4)]
    pipeline.step()
    assert [handle.can_read() for handle in handles] == [True] * 4
    for handle in handles:
        handle.cancel()


def test_openvino_drops_a_running_request_when_a_cancelled_one_holds_its_blocks(pipeline: Pipeline) -> None:
    older, younger = start(pipeline, 1, 500, 140), start(pipeline, 2, 60, 140)  # 16 + 2 of 20 blocks, and growing
    num_tokens = 0
    while True:
        pipeline.step()
        if younger.can_read():
            num_tokens += len(younger.read())
        elif num_tokens:
            break  # it has begun, and waits for a block
    older.cancel()
    pipeline.step()
    assert younger.get_status() == openvino_pipeline.IGNORED


def test_openvino_measures_blocks_before_it_frees_them(pipeline: Pipeline) -> None:
    handle = start(pipeline, 1, 64, 1)
    pipeline.step()
    assert handle.can_read()
    assert not pipeline.has_non_finished_requests()
    assert round(pipeline.get_metrics().cache_usage * 20 / 100) == 2
    pipeline.step()
    assert pipeline.get_metrics().cache_usage == 0


def test_a_signal_after_the_engine_is_closed_does_not_end_the_process() -> None:
    # Of a child, for it would be the test run that dies.
    program = f"""
import signal, sys
from pathlib import Path
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.providers import create_engine
signal.signal(signal.SIGALRM, lambda *_: print("handled", flush=True))
create_engine(OpenVinoEngineSpec(provider="openvino", dir=Path({str(DEMO_MODEL)!r}))).close()
signal.raise_signal(signal.SIGALRM)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (0, "handled\n"), result.stderr


def test_memory_does_not_grow_with_every_length_of_a_prompt() -> None:
    # About 1 MiB of compiled kernels for each, unless their caches are bounded; a process of its own, since the bound
    # is read when a process makes its first kernel, and another test's engine may have made that one.
    program = f"""
from pathlib import Path
import psutil
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.providers import create_engine

limits = dict(max_seq_len=512, max_num_seqs=4, num_kv_blocks=20, num_threads=1, is_prefix_caching=False)
engine = create_engine(OpenVinoEngineSpec(provider="openvino", dir=Path({str(DEMO_MODEL)!r}), **limits))

def run(lengths):
    for length in lengths:
        sampling = SamplingParams(max_tokens=1)
        engine.add(GenerationRequest(key=length, input_ids=[100 + length] * length, sampling=sampling))
        while engine.has_work:
            engine.step()
    return psutil.Process().memory_info().rss / 2**20

warm = run(range(1, 60))
print(run(range(60, 160)) - warm)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert float(result.stdout or "nan") < 30, result.stderr
