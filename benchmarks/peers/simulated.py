# SPDX-License-Identifier: Apache-2.0
"""Our ensemble with the `simulated` engine: everything that is not the engine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.cpu_parts import behind, cpu_by_part
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
_GRPC_FRONTEND = '"kind":"grpc"'  # on the command line of its process


def simulated_deployment(
    tokenizer_dir: Path, *, step_ms: float, responses: ResponseSpec | None = None
) -> DeploymentSpec:
    """Return the deployment of an engine whose step has a fixed time, whatever is in it.

    Args:
        responses: how tokens are joined. None: as they are by default.
    """
    engine = SimulatedEngineSpec(
        provider="simulated",
        step_ms=step_ms,
        prefill_us_per_token=0,
        decode_us_per_seq=0,
        max_num_seqs=_MAX_NUM_SEQS,
        num_kv_blocks=_KV_BLOCKS,
    )
    return DeploymentSpec.of_one(
        name="simulated_peer",
        tokenizer=TokenizerSpec(dir=tokenizer_dir, add_special_tokens=False),
        engine=engine,
        responses=responses or ResponseSpec(),
        triton=TritonSpec(),
    )


def shown_settings(spec: DeploymentSpec) -> str:
    """Return the settings of such a deployment for a reader."""
    model = spec.model
    return (
        f"engine {model.engine.model_dump(mode='json', exclude_defaults=True)}, responses "
        f"{model.responses.model_dump(mode='json')}"
    )


class SimulatedEnsemble:
    """Our ensemble over gRPC, with a simulated engine.

    Args:
        has_delay: tokens wait for each other, as they do by default; otherwise each leaves as soon as the sender is
            free for it.
        name: of the side. None: by `has_delay`.
    """

    precision = "no model"
    needs: tuple[Path, ...] = ()  # `make setup` installs it

    def __init__(
        self,
        tokenizer_dir: Path,
        *,
        step_ms: float,
        has_delay: bool,
        beside: str | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or ("trireme" if has_delay else "trireme, no delay")
        self.beside = beside
        responses = None if has_delay else ResponseSpec(max_chunk_delay_ms=0)
        self._spec = simulated_deployment(tokenizer_dir, step_ms=step_ms, responses=responses)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield `trireme serve`, asked over gRPC."""
        with ThroughEnsemble(self._spec) as server:
            yield AskedServer(
                server.url,
                "ensemble",
                version=our_version(server.http),
                settings=f"trireme serve; {shown_settings(self._spec)}",
                cpu_s=server.cpu_s,
                cpu_parts_s=lambda: cpu_by_part(server.processes(), behind(_GRPC_FRONTEND)),
            )


def our_version(triton_http: str) -> str:
    """Return the versions of Trireme and of its Triton at ``host:port``."""
    return f"trireme {package_version('trireme')}, Triton {triton_version(triton_http)}"
