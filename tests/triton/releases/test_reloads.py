# SPDX-License-Identifier: Apache-2.0
"""The models that `trireme render --diff` names: Triton loads them anew, and nothing else is touched."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from process_words import words_of
from running_server import PROJECT, READY_S
from waiting import wait_until

from ensemble_configs.changes.deployment_diff import Kind, compare
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.process.installation import find_triton
from serving.triton.triton_api import CONTROL_KEY_HEADER
from serving.triton.triton_process import TritonProcess
from trireme.base.free_ports import free_ports

TOKENIZER = {"dir": str(PROJECT / "examples/demo_model/target")}
ENGINE: dict[str, object] = {"provider": "simulated", "step_ms": 5.0, "max_num_seqs": 8, "num_kv_blocks": 64}
SECOND = {"release": 2, "tokenizer": TOKENIZER, "engine": ENGINE | {"seed": 2}}
LIMITED = {"resources": [{"name": "slots", "count": 1}]}
PATIENCE_S = 30


class LiveServer:
    """A server whose repository is written again while it runs."""

    def __init__(self, folder: Path, **model: object) -> None:
        self._repository = folder / "models"
        http, grpc, metrics = free_ports(3)
        self._ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
        self._url = f"http://127.0.0.1:{http}"
        self.spec = self._spec(model)
        write_repository(self.spec, root=self._repository, source="test")
        self._log = (folder / "triton.log").open("wb")
        self._server = TritonProcess(self.spec, self._repository, find_triton(), self._log)
        wait_until(self._server.is_ready, READY_S)

    def close(self) -> None:
        self._server.kill()
        self._server.clean_up()
        self._log.close()

    def processes(self) -> dict[tuple[str, int], set[int]]:
        """Return pids by model and version, of its stubs and its engine."""
        found: dict[tuple[str, int], set[int]] = {}
        for process in psutil.Process(self._server.pid).children(recursive=True):
            match = re.search(r"models/(\w+)/(\d+)(/model\.py|\s|$)", " ".join(words_of(process)))
            if match:
                found.setdefault((match[1], int(match[2])), set()).add(process.pid)
        return found

    def become(self, **model: object) -> dict[tuple[str, int], str]:
        """Take another deployment; return what became of each model's version whose processes have changed."""
        new = self._spec(model)
        diff = compare(self.spec, new)
        self.spec, before = new, self.processes()
        write_repository(new, root=self._repository, source="test")
        for change in diff.changes:
            self._load(change.name)
        predicted = {(change.name, version): "new" for change in diff.changes for version in change.loaded}
        predicted |= {(change.name, version): "gone" for change in diff.changes for version in change.dropped}
        predicted |= {(change.name, 1): "more" for change in diff.changes if change.kind is Kind.SCALED}
        predicted = {key: what for key, what in predicted.items() if not key[0].endswith("graph")}  # of no process
        assert not diff.restarts
        wait_until(lambda: self._became(before) == predicted, PATIENCE_S)
        return predicted

    def _became(self, before: dict[tuple[str, int], set[int]]) -> dict[tuple[str, int], str]:
        now = self.processes()
        found = {}
        for key in before.keys() | now.keys():
            old, new = before.get(key, set()), now.get(key, set())
            if old != new:
                found[key] = "gone" if not new else "more" if old and old < new else "new" if not old & new else "mixed"
        return found

    def _load(self, model: str) -> None:
        headers = {CONTROL_KEY_HEADER: self._server.control_key}
        url = f"{self._url}/v2/repository/models/{model}/load"
        urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=PATIENCE_S).close()

    def _spec(self, model: dict[str, object]) -> DeploymentSpec:
        own = {"name": "m", "prefix": "", "tokenizer": TOKENIZER, "engine": ENGINE, "rate_limiter": LIMITED, **model}
        return DeploymentSpec.model_validate(
            {"name": "d", "triton": self._ports, "models": [own], "rate_limiter": [{"name": "slots", "count": 4}]}
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("live"))
    yield server
    server.close()


def test_triton_does_what_the_diff_says(live: LiveServer) -> None:
    engine = "tensorrt_llm"
    assert live.become() == {}
    live._load(engine)
    more_tokenizers: dict[str, object] = {"instances": {"preprocessing": 2}}
    assert live.become(**more_tokenizers) == {("preprocessing", 1): "more"}
    assert live.become(**more_tokenizers, other_releases=[SECOND])[engine, 2] == "new"
    stable = live.processes()[engine, 1]
    promoted = {"release": 2, "engine": SECOND["engine"], "other_releases": [SECOND | {"release": 1, "engine": ENGINE}]}
    assert live.become(**more_tokenizers, **promoted) == {("ensemble", 2): "new", ("tensorrt_llm_bls", 2): "new"}
    assert live.processes()[engine, 1] == stable, "the engine of release 1 went on"
    back = live.become(**more_tokenizers)
    assert {key: what for key, what in back.items() if key[1] == 2} == dict.fromkeys(
        [(step, 2) for step in ("preprocessing", engine, "postprocessing", "ensemble", "tensorrt_llm_bls")], "gone"
    )
    assert live.processes()[engine, 1] == stable
    heavier = {"rate_limiter": LIMITED | {"priority": 2}}
    assert live.become(**more_tokenizers, **heavier)[engine, 1] == "new"
    assert (
        live.become(**more_tokenizers, **heavier, responses={"max_chunk_delay_ms": 3.0})["postprocessing", 1] == "new"
    )
