# SPDX-License-Identifier: Apache-2.0
"""An imported deployment on the real Triton: its repository loads, and takes what the old ensemble's clients send."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from old_repositories import write_engine_config, write_old_repository
from running_server import PROJECT, RunningServer
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult, model_config_pb2
from tritonclient.utils import triton_to_np_dtype

TOKENIZER = PROJECT / "examples" / "demo_model" / "target"
MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
# What a client of any release sends that asks for nothing more than text.
VALUES = {"text_input": b"Once upon a time", "max_tokens": 8, "stream": True, "exclude_input_in_output": True}


def import_old(folder: Path, version: tuple[int, int]) -> dict[str, Any]:
    """Return the deployment that the command writes, on an engine that this machine can run."""
    old = write_old_repository(
        folder / "old", version, {"exclude_input_in_output": "True", "accumulate_tokens": "True"}
    )
    engine = write_engine_config(folder / "engine", version=f"{version[0]}.{version[1]}.0")
    command = [sys.executable, "-m", "trireme", "import", str(old), "--out", str(folder / "imported.yaml")]
    command += ["--engine-dir", str(engine), "--tokenizer-dir", str(TOKENIZER)]
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True)
    data = yaml.safe_load((folder / "imported.yaml").read_text())
    assert isinstance(data, dict)
    limits = {name: data["engine"][name] for name in ("max_seq_len", "max_num_seqs", "max_num_batched_tokens")}
    return data | {"engine": {"provider": "simulated", "step_ms": 1.0} | limits}


def generated(server: RunningServer, inputs: list[InferInput]) -> bytes:
    """Return the text of one stream at `ensemble`."""
    results: list[InferResult] = []
    errors: list[object] = []
    with InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: errors.append(error) if error else results.append(result))
        client.async_stream_infer("ensemble", inputs)
        client.stop_stream()
    assert errors == []
    return b"".join(result.as_numpy("text_output")[0] for result in results)


@pytest.mark.parametrize(
    "version",
    [pytest.param((0, 17), marks=pytest.mark.soak), (0, 19), (1, 2)],
    ids=lambda version: f"{version[0]}.{version[1]}",
)
def test_an_imported_deployment_is_served_with_the_old_ensembles_tensors(
    version: tuple[int, int], tmp_path: Path
) -> None:
    deployment = import_old(tmp_path, version)
    with RunningServer(yaml.safe_dump(deployment), tmp_path / "served") as server:
        with InferenceServerClient(server.url) as client:
            for model in MODELS:
                assert client.is_model_ready(model)
            config = client.get_model_config("ensemble").config
        old = text_format.Parse((tmp_path / "old/ensemble/config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        for theirs, ours in ((old.input, config.input), (old.output, config.output)):
            served = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ours}
            assert {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in theirs}.items() <= served.items()
        assert config.max_batch_size == old.max_batch_size == 64
        inputs = []
        for tensor in old.input:
            if tensor.name not in VALUES:
                continue
            kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
            value = InferInput(tensor.name, [1, 1], kind)
            value.set_data_from_numpy(np.array([[VALUES[tensor.name]]], dtype=triton_to_np_dtype(kind)))
            inputs.append(value)
        assert len(inputs) == len(VALUES)
        assert generated(server, inputs)
