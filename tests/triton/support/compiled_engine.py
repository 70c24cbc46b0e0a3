# SPDX-License-Identifier: Apache-2.0
"""A compiled engine of the fake `tensorrt_llm` on the real server: logits, log probabilities, beams and phases."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_packages import install_fake
from fake_tensorrt_llm import write_engine
from lora_adapters import write_adapter
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text

MAX_BEAM_WIDTH = 3
LORA_TASK_ID = 3


@contextlib.contextmanager
def compiled_server(folder: Path, *, decoupled: bool = True) -> Iterator[RunningServer]:
    """Serve an engine with all that a request may need, but for what excludes something else."""
    write_adapter(folder / "lora" / str(LORA_TASK_ID))
    engine = {
        "provider": "tensorrt",
        "dir": str(write_engine(folder / "model", max_beam_width=MAX_BEAM_WIDTH, gather_context_logits=True)),
        "max_seq_len": 2048,
        "max_beam_width": MAX_BEAM_WIDTH,
        "end_ids": [2],  # a compiled engine searches with beams for one alone
        "is_gathering_generation_logits": True,
        "is_gathering_context_logits": True,
        "is_block_reuse": False,  # an engine built to gather them has none
        "guided_decoding_backend": "xgrammar",
        "tokenizer_dir": str(PROJECT / "examples/demo_model/target"),
        "cache_transceiver": {},
        "lora": {"dir": str(folder / "lora")},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(install_fake(folder / "packages")))
        text = deployment_text("compiled", engine=engine, endpoints=ENDPOINTS, decoupled=decoupled)
        with RunningServer(text, folder / "server") as server:
            yield server
