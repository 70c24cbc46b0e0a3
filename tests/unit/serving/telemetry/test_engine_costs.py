# SPDX-License-Identifier: Apache-2.0
"""The costs of a step follow from a model's own files, or from a spec, and are never made up."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ov

from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.openvino.openvino_costs import openvino_costs
from serving.engines.seam.base import EngineCosts
from serving.telemetry.cpu_bandwidth import keep_bandwidth, kept_bandwidth, measure_bandwidth
from serving.telemetry.engine_costs import engine_costs
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model"
TARGET = DEMO / "openvino/target"
# Vocabulary 4096, width 256, 5 layers with 4 heads of 64 and 2 of keys and values, feed-forward 768; tied.
NUM_MULTIPLIED = 4096 * 256 + 5 * 256 * (2 * 256 + 2 * 128 + 3 * 768)


def release(**engine: Any) -> ReleaseSpec:
    return ReleaseSpec.model_validate({"release": 1, "tokenizer": {"dir": DEMO / "target"}, "engine": engine})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder of a user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_tied_model_reads_its_whole_file() -> None:
    costs = engine_costs(release(provider="openvino", dir=TARGET))
    size = (TARGET / "openvino_model.bin").stat().st_size
    assert costs.weight_bytes is not None
    assert size - 64 <= costs.weight_bytes <= size, "all but the padding"
    assert costs.flops_per_token == 2 * NUM_MULTIPLIED
    # 5 layers x 2 heads x (keys: 64 and 2 bytes of scales for each of 64 channels in 8 x 32; values: 64 + 8)
    assert costs.kv_bytes_per_token == 5 * 2 * (64 * (1 + 8 / 32) + 64 + 8)
    assert costs.peak_flops is costs.peak_bandwidth_bytes_per_s is None, "nobody has measured this CPU"


def test_the_kv_cache_in_16_bits_takes_two_bytes_a_number() -> None:
    assert openvino_costs(TARGET, kv_precision="f16").kv_bytes_per_token == 5 * 2 * 2 * 64 * 2


def untied_model(folder: Path) -> Path:
    """Write 100 embeddings of 8 numbers, a head of 8 x 50 in 8 bits with a scale a row, and `config.json`."""
    ids = ov.parameter([-1], openvino.Type.i64)
    table = ov.constant(np.ones((100, 8), np.float16))
    head = ov.constant(np.full((50, 8), 3, np.uint8))
    scale = ov.constant(np.ones((50, 1), np.float16))
    unpacked = ov.convert(ov.multiply(ov.convert(head, "f16"), scale), "f32")
    looked_up = ov.gather(ov.convert(table, "f32"), ids, ov.constant(0))
    model = openvino.Model([ov.matmul(looked_up, unpacked, transpose_a=False, transpose_b=True)], [ids])
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 2}))
    return folder


def test_a_table_of_embeddings_of_its_own_is_not_read(tmp_path: Path) -> None:
    costs = openvino_costs(untied_model(tmp_path), kv_precision="auto")
    assert costs.flops_per_token == 2 * 8 * 50
    assert costs.weight_bytes is not None
    assert 8 * 50 + 50 * 2 <= costs.weight_bytes < 8 * 50 + 50 * 2 + 32, "the head with its scales, and the axis"
    assert costs.kv_bytes_per_token is None, "the config tells no width"


def test_of_a_model_with_experts_only_the_kv_cache_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "experts"
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_local_experts": 8}))
    costs = openvino_costs(folder, kv_precision="auto")
    assert (costs.weight_bytes, costs.flops_per_token) == (None, None)
    assert costs.kv_bytes_per_token == 1520


def test_a_config_that_tells_its_layers_one_by_one_leaves_the_kv_cache_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "uneven"
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": [2, 2, 1, 1, 1]}))
    costs = openvino_costs(folder, kv_precision="auto")
    assert costs.kv_bytes_per_token is None
    assert costs.flops_per_token == 2 * NUM_MULTIPLIED


def test_a_simulated_engine_is_what_its_spec_says() -> None:
    assert engine_costs(release(provider="simulated")) == EngineCosts()
    said = {"weight_bytes": 10**9, "kv_bytes_per_token": 2048, "flops_per_token": 1e9, "peak_flops": 1e14}
    assert engine_costs(release(provider="simulated", **said)) == EngineCosts(**said)


def test_a_gpu_engine_without_a_release_has_no_figures(tmp_path: Path) -> None:
    assert engine_costs(release(provider="tensorrt", dir=tmp_path / "engine")) == EngineCosts()


def test_the_bandwidth_of_the_cores_is_known_once_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = release(provider="openvino", dir=TARGET)
    assert engine_costs(model).peak_bandwidth_bytes_per_s is None
    measured = measure_bandwidth(num_rounds=3)
    assert 1e8 < measured < 1e13
    keep_bandwidth(measured)
    assert engine_costs(model).peak_bandwidth_bytes_per_s == measured
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000)))
    assert kept_bandwidth() is None, "of another number of cores"


def test_a_spoilt_memory_of_the_bandwidth_is_none(cache: Path) -> None:
    file = keep_bandwidth(1e10)
    assert file.is_relative_to(cache)
    for text in ("", "[]", json.dumps(dict.fromkeys(json.loads(file.read_text()), "fast"))):
        file.write_text(text)
        assert kept_bandwidth() is None
