# SPDX-License-Identifier: Apache-2.0
"""Two language models and a small embedding model on one server: their parts of a device, and which starts next.

The load and what is read from it are those of `benchmarks.studies.shared_device`, whose figures are in
docs/rate_limiting.md.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc.aio as grpcclient
import yaml
from numpy.typing import NDArray
from plain_triton import PlainTriton
from running_server import RunningServer
from waiting import wait_until

from benchmarks.studies.shared_device import (
    NUM_SEATS,
    NUM_STREAMS,
    Saturated,
    embed_once,
    neighbour_ttft_ms,
    saturate,
    separate_deployment,
    shared_deployment,
    unshared_deployment,
    watch,
)
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.shared_budget.shared_ledger import SharedLedger
from trireme.base.errors import Unavailable
from trireme.base.sample_statistics import percentile


def serving(spec: DeploymentSpec, folder: Path) -> RunningServer:
    return RunningServer(yaml.safe_dump(spec.model_dump(mode="json")), folder)


def join(server: RunningServer) -> SharedLedger:
    return watch(Path(server.tritonserver().environ()[RUN_DIR_VARIABLE]))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # 200 tokens a second: on a busy machine, too, both models have requests waiting, or there are no shares to compare
    with serving(shared_deployment((1.0, 2.0), step_ms=40.0), tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="module")
def ledger(shared: RunningServer) -> Iterator[SharedLedger]:
    watcher = join(shared)
    yield watcher
    watcher.close()


@pytest.fixture(scope="module")
def saturated(shared: RunningServer, ledger: SharedLedger) -> Saturated:
    return asyncio.run(saturate(shared.url, ledger, duration_s=8, max_tokens=10))


def test_generations_of_two_models_stay_within_what_they_share(saturated: Saturated, ledger: SharedLedger) -> None:
    # As the engines' own times say, as the ledger was seen, and as it counts itself; and all of it was used.
    assert saturated.most_at_once() == NUM_STREAMS
    assert max(saturated.held) == NUM_STREAMS
    assert ledger.resources()["streams"].high_water == NUM_STREAMS
    assert ledger.resources()["streams"].held == 0
    assert saturated.num_embedded > 0


def test_two_saturated_models_share_by_their_weights(saturated: Saturated) -> None:
    assert saturated.held_s("large") / saturated.held_s("small") == pytest.approx(2, rel=0.15)
    assert saturated.starts["large"] / saturated.starts["small"] == pytest.approx(2, rel=0.15)


def test_an_engine_that_is_killed_frees_what_it_held_for_the_other_model(
    shared: RunningServer, ledger: SharedLedger
) -> None:
    def answers(model: str) -> bool:
        with contextlib.suppress(Unavailable):  # its engine is being started again
            return bool(list(client.generate(request, model=model)))
        return False

    request = GenerateRequest(text_input="hello", max_tokens=5, stream=True)
    endless = GenerateRequest(text_input="hello", max_tokens=2000, stream=True)
    with TritonClient(shared.url) as client:
        running = [client.generate(endless, model="small_ensemble") for _ in range(NUM_STREAMS)]
        for one in running:
            next(one)
        [holder] = [member for member in ledger.members() if member.held]
        assert holder.held == {"streams": NUM_STREAMS}
        psutil.Process(holder.pid).kill()
        assert answers("large_ensemble")
        for one in running:
            with pytest.raises(Unavailable, match="engine_died"):
                list(one)
        wait_until(lambda: answers("small_ensemble"), 30)
    assert {member.name for member in ledger.members() if member.name != "watcher"} == {
        "small_tensorrt_llm/1", "large_tensorrt_llm/1"
    }  # fmt: skip
    assert ledger.resources()["streams"].held == 0


def test_the_embedding_model_gives_real_vectors_beside_them(shared: RunningServer) -> None:
    async def embed() -> list[NDArray[np.float32]]:
        async with grpcclient.InferenceServerClient(shared.url) as client:
            texts = ("What is the capital of France?", "Which city is the capital of France?", "23 + 45 =")
            return [await embed_once(client, text) for text in texts]

    france, france_again, sum_ = asyncio.run(embed())
    assert float(france @ france) == pytest.approx(1, abs=1e-4)
    assert france @ france_again > france @ sum_ + 0.05


def test_below_a_plain_tritonserver_its_engines_find_each_other(tmp_path: Path) -> None:
    spec = shared_deployment((1.0, 2.0))
    write_repository(spec, root=tmp_path / "models", source="the test")
    options = [f"--{name}={value}" for name, value in launch_flags(spec) if name.startswith("rate-limit")]
    options.append("--disable-auto-complete-config")  # our configs are complete
    with PlainTriton(tmp_path / "models", tmp_path, options=tuple(options)) as server:
        folder = Path(tempfile.gettempdir()) / f"trireme-{os.getuid()}-{server.process.pid}"
        watcher = watch(folder)
        names = {member.name: member.weight for member in watcher.members()}
        watcher.close()
    shutil.rmtree(folder)
    assert names == {"small_tensorrt_llm/1": 1.0, "large_tensorrt_llm/1": 2.0, "watcher": 1.0}


def test_tritons_own_limiter_lets_every_seat_be_taken(tmp_path: Path) -> None:
    with serving(unshared_deployment(), tmp_path) as server:
        watcher = join(server)
        # So long that a seat is not free again before a client on a busy machine has asked for the last one.
        seen = asyncio.run(saturate(server.url, watcher, duration_s=6, max_tokens=200))
        watcher.close()
    assert seen.most_at_once() == 2 * NUM_SEATS  # of one unit for both


@pytest.mark.soak
@pytest.mark.quiet
def test_a_flood_leaves_a_model_alone_whose_resources_are_apart(tmp_path: Path) -> None:
    with serving(separate_deployment(), tmp_path) as server:
        alone, flooded = (
            asyncio.run(neighbour_ttft_ms(server.url, duration_s=6, is_flooded=is_flooded, seed=1))
            for is_flooded in (False, True)
        )
    # In the flooded model's queue it would have waited for seconds.
    assert percentile(flooded, 90) < 5 * percentile(alone, 90)
