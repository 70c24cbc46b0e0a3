# SPDX-License-Identifier: Apache-2.0
"""Our ensemble with the `simulated` engine: everything that is not the engine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.peer import AskedServer, Started
from benchmarks.support.report import triton_version
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.load_run.run_folder import package_version
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import ResponseSpec, TokenizerSpec
from ensemble_configs.spec.triton_spec import TritonSpec

_MAX_NUM_SEQS = 256  # the mocker's default
_KV_BLOCKS = 32_768  # of 16 tokens: enough for all of them


class SimulatedEnsemble:
    """Our ensemble, in which an engine's step has a fixed time, whatever is in it.

    Args:
        has_delay: tokens wait for each other, as they do by default; otherwise each leaves as soon as the sender is
            free for it.
    """

    precision = "no model"
    needs: tuple[Path, ...] = ()  # `make setup` installs it

    def __init__(self, tokenizer_dir: Path, *, step_ms: float, has_delay: bool, beside: str | None = None) -> None:
        self.name = "trireme" if has_delay else "trireme, no delay"
        self.beside = beside
        self._tokenizer_dir = tokenizer_dir
        self._step_ms = step_ms
        self._responses = ResponseSpec() if has_delay else ResponseSpec(max_chunk_delay_ms=0)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield `trireme serve`, asked over gRPC."""
        engine = SimulatedEngineSpec(
            provider="simulated",
            step_ms=self._step_ms,
            prefill_us_per_token=0,
            decode_us_per_seq=0,
            max_num_seqs=_MAX_NUM_SEQS,
            num_kv_blocks=_KV_BLOCKS,
        )
        spec = DeploymentSpec.of_one(
            name="simulated_peer",
            tokenizer=TokenizerSpec(dir=self._tokenizer_dir, add_special_tokens=False),
            engine=engine,
            responses=self._responses,
            triton=TritonSpec(),
        )
        with ThroughEnsemble(spec) as server:
            yield AskedServer(
                server.url,
                "ensemble",
                version=f"trireme {package_version('trireme')}, Triton {triton_version(server.http)}",
                settings=f"trireme serve; engine {engine.model_dump(mode='json', exclude_defaults=True)}, responses "
                f"{self._responses.model_dump(mode='json')}",
                cpu_s=server.cpu_s,
            )
