# SPDX-License-Identifier: Apache-2.0
"""Mutated deployments that were accepted load on the real server, every model of them, and answer."""

import itertools
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deployment_bases import write_own_models
from deployment_mutations import Mutation, mutations
from packed_deployments import Pack, packs
from raw_calls import StreamFailed, engine_request, stream

from benchmarks.support.report import environment, write_result
from ensemble_configs.render.repository import render_repository, write_repository
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment, override_triton
from ensemble_configs.spec.engine.simulated_spec import SimulatedFaultSpec
from serving.doctor.preflight import check
from serving.doctor.server_features import refuse_missing_flags
from serving.process.installation import find_triton
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import SpecError
from trireme.base.free_ports import free_ports

COUNT = 2000
SAMPLE, OF = 12, 400  # in `make test`
LOAD_S = 150.0  # of some 50 processes; 5 to 10 s on two idle cores
# The kinds that are ever right, and those that rarely are: another provider than a base has must be installed here, and
# have all its fields.
ACCEPTED_KINDS = {
    "key dropped", "list entry twice", "list entry removed", "values swapped", "other allowed value",
    "other name", "other ports",
}  # fmt: skip
RARELY_ACCEPTED = {"other provider"}
# A target that no engine can meet: whoever sets it has every request refused, in these words.
TOO_LATE = "its first token would come too late"

Accepted = list[tuple[Mutation, DeploymentSpec]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own_models(tmp_path_factory.mktemp("fuzzed"))


def accepted(count: int, folder: Path) -> Accepted:
    """Return the mutations, of so many, that `trireme serve` would start here, on ports that are free."""
    found = []
    names = ("http_port", "grpc_port", "metrics_port")
    installation = find_triton()
    for mutation in mutations(count):
        path = folder / "d.yaml"
        path.write_text(mutation.text)
        try:
            spec = override_triton(load_deployment(path), **dict(zip(names, free_ports(3), strict=True)))
            check(spec)
            refuse_missing_flags(spec.triton, installation)
            render_repository(spec, root=folder / "models", source="test")  # refuses what an extra model lacks
        except SpecError:
            continue
        if not any(fails_as_told(release.engine) for release in spec.releases):
            found.append((mutation, spec))
    assert {mutation.kind for mutation, _ in found} - RARELY_ACCEPTED == ACCEPTED_KINDS
    return found


def fails_as_told(engine: object) -> bool:
    fault: SimulatedFaultSpec | None = getattr(engine, "fault", None)
    return fault is not None and (fault.after_requests or 0) < 1000


def stratified(found: Accepted, count: int) -> Accepted:
    """Return the first ones of each kind in turns."""
    by_kind: dict[str, Accepted] = {}
    for mutation, spec in found:
        by_kind.setdefault(mutation.kind, []).append((mutation, spec))
    turns = itertools.zip_longest(*by_kind.values())
    return [each for turn in turns for each in turn if each is not None][:count]


@pytest.mark.timeout(600)
def test_of_each_kind_some_that_were_accepted_load_and_answer(folder: Path) -> None:
    chosen = stratified(accepted(OF, folder), SAMPLE)
    assert len(chosen) == SAMPLE
    assert {mutation.kind for mutation, _ in chosen} - RARELY_ACCEPTED == ACCEPTED_KINDS
    assert sum(load(pack, folder) for pack in packs(chosen)) == SAMPLE


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_that_were_accepted_load_and_answer(folder: Path) -> None:
    began_s = time.monotonic()
    found = accepted(COUNT, folder)
    loaded = {"deployments": 0, "servers": 0, "triton_models": 0, "processes": 0}
    for pack in packs(found):
        loaded["deployments"] += load(pack, folder)
        loaded["servers"] += 1
        loaded["triton_models"] += sum(len(model.triton_names) for model in pack.spec.models)
        loaded["processes"] += pack.num_processes
    assert loaded["deployments"] == len(found)
    kinds = Counter(mutation.kind for mutation, _ in found)
    figures = {"mutations": COUNT, **loaded, "by_kind": kinds, "took_s": round(time.monotonic() - began_s, 1)}
    write_result(
        "fuzzed_deployments",
        {"benchmark": "fuzzed_deployments", "figures": figures, "environment": environment()},
    )


def load(pack: Pack, folder: Path) -> int:
    """Load a pack, ask each of its deployments, and return how many they are."""
    repository, log_path = folder / "models", folder / "triton.log"
    shutil.rmtree(repository, ignore_errors=True)
    write_repository(pack.spec, root=repository, source="test")
    with log_path.open("wb") as log:
        server = TritonProcess(pack.spec, repository, find_triton(), log)
        try:
            wait_ready(server, pack, log_path)
            host = "[::1]" if pack.spec.triton.host == "::1" else "127.0.0.1"
            url = f"{host}:{pack.spec.triton.grpc_port}"
            with ThreadPoolExecutor(8) as callers:
                for mutation, answer in callers.map(lambda each: (each[0], ask(url, each[1])), pack.asked.items()):
                    is_refusing = TOO_LATE in answer and "ttft_ms" in mutation.keys
                    assert is_refusing or answer == "1 token", f"{mutation}: {answer}\n{mutation.text}"
        finally:
            server.kill()
            server.clean_up()
    return len(pack.asked)


def wait_ready(server: TritonProcess, pack: Pack, log: Path) -> None:
    """Wait until Triton is ready, which it is when all its models are; it ends when one of them cannot be loaded."""
    deadline_s = time.monotonic() + LOAD_S
    while not server.is_ready():
        if server.exit_status is not None or time.monotonic() > deadline_s:
            failed = "\n".join(failures(log))
            raise AssertionError(f"of {', '.join(map(str, pack.asked))} there failed:\n{failed}")
        time.sleep(0.05)


def failures(log: Path) -> Iterator[str]:
    """Yield what Triton says of models that are not there, and which it still loads."""
    text = log.read_text(errors="replace")
    yield from (line for line in text.splitlines() if "failed to load" in line)
    loading = set(re.findall(r'"loading: (\w+):', text)) - set(re.findall(r"successfully loaded '(\w+)'", text))
    yield f"not loaded: {', '.join(sorted(loading))}"


def ask(url: str, model: str) -> str:
    """Ask for one token after one, which every vocabulary has, and return what came."""
    try:
        responses = list(stream(url, model, engine_request([16], 1)))
    except StreamFailed as exc:
        return str(exc)
    return f"{sum(response['output_ids'].size for response in responses)} token"
