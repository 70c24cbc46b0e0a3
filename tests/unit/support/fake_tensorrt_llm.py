# SPDX-License-Identifier: Apache-2.0
"""The generated `tensorrt_llm` for tests: there for as long as a block lasts, with model folders and a step by hand."""

import contextlib
import functools
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import trtllm_iteration_stats
from trtllm_behaviour import Executor
from trtllm_generator import write_fake

from serving.engines.seam.base import Engine, TokenChunk
from serving.engines.seam.wrapped_engine import WrappedEngine
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine

VOCAB_SIZE = 4096

trtllm_iteration_stats.PAUSE_S = 0.01  # every engine waits for it at its start; that 0.2 s do: test_trtllm_behaviour


@contextlib.contextmanager
def fake_tensorrt_llm(version: str = "1.2.1", *, facts_of: str | None = None) -> Iterator[ModuleType]:
    """Make `import tensorrt_llm` find the fake of a version, made from another's facts where `facts_of` names one."""
    folder, modules = _generated(version, facts_of)
    assert not _names_of_the_fake(), "one version at a time"
    sys.modules.update(modules)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    before = os.environ.get("FAKE_RANKS")
    os.environ["FAKE_RANKS"] = "off"  # a test that wants them starts the engine in a process of its own
    try:
        yield importlib.import_module("tensorrt_llm")
    finally:
        if before is None:
            del os.environ["FAKE_RANKS"]
        else:
            os.environ["FAKE_RANKS"] = before
        sys.path.remove(folder)
        for name in _names_of_the_fake():
            modules[name] = sys.modules.pop(name)  # its classes are the same the next time


def _names_of_the_fake() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("tensorrt_llm", "torch", "mpi4py", "xgrammar")]


def fake_folder(version: str = "1.2.1") -> str:
    """Return the folder of a version's fake, for the path of a process; with what Python compiles, for the next one."""
    return _generated(version, None)[0]


@functools.cache
def _generated(version: str, facts_of: str | None) -> tuple[str, dict[str, ModuleType]]:
    folder = tempfile.TemporaryDirectory(prefix="trireme-fake-tensorrt-llm-")
    _FOLDERS.append(folder)
    write_fake(Path(folder.name), version=version, facts_of=facts_of)
    return folder.name, {}


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


def write_engine(folder: Path, *, world_size: int = 1, tp_size: int = 1, **build: object) -> Path:
    """Write a folder as trtllm-build leaves it, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    built = {
        "max_input_len": 2048,
        "max_seq_len": 2048,
        "max_batch_size": 64,
        "max_num_tokens": 8192,
        "plugin_config": {"tokens_per_block": 32},
    }
    mapping = {"world_size": world_size, "tp_size": tp_size, "pp_size": world_size // tp_size}
    config = {
        "version": "1.2.1",
        "pretrained_config": {"architecture": "LlamaForCausalLM", "vocab_size": VOCAB_SIZE, "mapping": mapping},
        "build_config": built | build,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    for rank in range(world_size):
        (folder / f"rank{rank}.engine").touch()
    return folder


def write_checkpoint(folder: Path, **changes: object) -> Path:
    """Write a folder as Hugging Face writes it, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 2048, "eos_token_id": 2} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class SteppedEngine(WrappedEngine):
    """An engine on the fake whose upstream iterates once for each step, so that tests can count."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        assert isinstance(engine, TrtLlmEngine)
        super().__init__(engine)
        executor.is_paced = True
        self.executor = executor

    def step(self) -> list[TokenChunk]:
        self.executor.iterate()
        return super().step()
