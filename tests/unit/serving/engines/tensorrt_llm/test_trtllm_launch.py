# SPDX-License-Identifier: Apache-2.0
"""Tests of how a server with an engine of several ranks is started, as text."""

from pathlib import Path

import pytest

from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from serving.engines.tensorrt_llm.trtllm_launch import render_launch
from trireme.base.errors import SpecError

SERVE = ("trireme", "serve", "--deployment", "big.yaml")


def pytorch(tp_size: int, pp_size: int = 1, gpus_per_node: int | None = None) -> PyTorchEngineSpec:
    return PyTorchEngineSpec(
        provider="pytorch", dir=Path("m"), tp_size=tp_size, pp_size=pp_size, gpus_per_node=gpus_per_node
    )


def test_over_two_nodes_a_launcher_starts_all_ranks() -> None:
    spec = pytorch(8, pp_size=2, gpus_per_node=8)
    assert " ".join(render_launch(spec, SERVE, num_nodes=2)) == (
        "mpirun --allow-run-as-root -n 16 --map-by ppr:8:node trtllm-llmapi-launch trireme serve --deployment big.yaml"
    )


def test_options_of_the_launcher_stand_before_what_it_starts() -> None:
    command = render_launch(pytorch(4, gpus_per_node=2), SERVE, num_nodes=2, launcher_options=("--hostfile", "h"))
    assert command[4:] == ("--map-by", "ppr:2:node", "--hostfile", "h", "trtllm-llmapi-launch", *SERVE)


@pytest.mark.parametrize(
    ("spec", "num_nodes", "message"),
    [
        (pytorch(8, gpus_per_node=8), 3, "8 ranks do not divide into 3 nodes"),
        (pytorch(8, gpus_per_node=8), 2, r"engine.gpus_per_node \(8\) must be 4: 8 ranks on 2 nodes"),
        (pytorch(8), 2, r"engine.gpus_per_node \(None\) must be 4"),
    ],
    ids=["ranks do not divide", "other nodes", "nodes unknown"],
)
def test_a_launch_that_cannot_be_is_refused(spec: PyTorchEngineSpec, num_nodes: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        render_launch(spec, SERVE, num_nodes=num_nodes)
