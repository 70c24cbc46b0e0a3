# SPDX-License-Identifier: Apache-2.0
"""Our side with vLLM's engine core in place of OpenVINO: behind Triton, and alone in its process."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.peers import model_files
from benchmarks.peers.in_process import TextEngine
from benchmarks.peers.peer import AskedServer, Started
from benchmarks.peers.vllm_cpu import KV_GIB, VENV, vllm_version
from benchmarks.support.in_process import in_child_process
from benchmarks.support.report import triton_version
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.load_run.run_folder import package_version
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.vllm.vllm_start import plan_vllm_start
from serving.text.tokenization import PromptTokenizer

NAME = "trireme on vLLM"
_PRECISION = "weights bf16, arithmetic bf16"
_NEEDS = (VENV / "bin" / "python", model_files.CHECKPOINT)


def deployment() -> DeploymentSpec:
    """Return our deployment of the model on vLLM, with its defaults but for the KV cache, which is that of the peer."""
    spec = model_files.deployment(16)
    engine = VllmEngineSpec(
        provider="vllm",
        dir=model_files.CHECKPOINT,
        venv_dir=VENV,
        max_seq_len=spec.model.engine.max_seq_len,
        device="cpu",
        kv_cache_bytes=KV_GIB * 2**30,
        load_timeout_s=600.0,
    )
    return spec.with_model(engine=engine).model_copy(update={"name": f"{spec.name}_vllm"})


class VllmEnsemble:
    """Triton, the ensemble's adapters and vLLM's engine core in the engine's process."""

    name = NAME
    beside: str | None = None
    precision = _PRECISION
    needs: tuple[Path, ...] = _NEEDS

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield `trireme serve`."""
        with ThroughEnsemble(deployment()) as server:
            yield AskedServer(
                server.url,
                "ensemble",
                version=f"trireme {package_version('trireme')}, {vllm_version()}, Triton {triton_version(server.http)}",
                settings="trireme serve, provider vllm at its defaults, kv_cache_bytes of the peer",
                cpu_s=server.cpu_s,
            )


class InProcessVllm:
    """vLLM's engine core behind the seam, step by step, with the same tokenizer and detokenizer work, and no server."""

    name = "in-process vLLM"
    beside: str | None = NAME
    precision = _PRECISION
    needs: tuple[Path, ...] = _NEEDS

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the process of `benchmarks.support.in_process`, in vLLM's environment."""
        spec = deployment()
        assert isinstance(spec.model.engine, VllmEngineSpec)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "deployment.yaml"
            path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
            start = plan_vllm_start(spec.model.engine, os.environ, Path(folder))
            assert start.python is not None
            environment = start.environment_from(os.environ, Path(folder)) | {"PYTHONPATH": str(model_files.ROOT)}
            with in_child_process(path, python=start.python, environment=environment) as ask_child:
                tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
                yield TextEngine(ask_child, tokenizer, version=vllm_version())
