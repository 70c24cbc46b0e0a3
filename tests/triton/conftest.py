# SPDX-License-Identifier: Apache-2.0
"""Real servers for the tests of this folder: each is `trireme serve` itself, on ports of its own."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from asked_server import ask_once, name_of
from compiled_engine import compiled_server
from rollout_site import HARD, HARD_TOKENS, Site, Texts, said_by_engine, serving
from running_server import ENDPOINTS, RunningServer, deployment_text

from serving.doctor.server_features import ServerFeatures

# A job in the background of a shell ignores Ctrl-C, and so would every server that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

SERVER = "tritonserver"  # property of a test in reports
PROJECT = Path(__file__).resolve().parent.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.triton)


@pytest.fixture(scope="session")
def asked_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> ServerFeatures:
    """Return the server that is found here, with its answers to what differs between servers."""
    base = tmp_path_factory.getbasetemp()
    return ask_once(base if worker_id == "master" else base.parent)


@pytest.fixture(autouse=True)
def named_server(asked_server: ServerFeatures, request: pytest.FixtureRequest) -> None:
    """Name the server in the report of each test (`--junit-xml`); the summary names it for every test."""
    request.node.user_properties.append((SERVER, name_of(asked_server)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the servers that were asked; the tests that asked them are counted."""
    names: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                names.update(str(value) for name, value in report.user_properties if name == SERVER)
    for name, count in names.items():
        terminalreporter.write_line(f"{count} tests asked {name}")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield the simulated engine, 5 ms a step, shared by all tests that leave it as it was."""
    engine = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 4096}
    text = deployment_text("simulated", engine=engine, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("simulated")) as server:
        yield server


@pytest.fixture(scope="session")
def unary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield the simulated engine behind `decoupled: false`, 5 ms a step, shared by tests that leave it as it was."""
    engine = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 4096}
    with RunningServer(
        deployment_text("unary", engine=engine, endpoints=ENDPOINTS, decoupled=False), tmp_path_factory.mktemp("u")
    ) as server:
        yield server


@pytest.fixture(scope="session")
def openvino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield the demo model on OpenVINO, shared by all tests that leave it as it was.

    Computed in f32, so that an answer is the same whatever runs beside the request, on every CPU.
    """
    model = str(PROJECT / "examples/demo_model/openvino/target")
    engine = {"provider": "openvino", "dir": model, "execution_mode": "accuracy"}
    text = deployment_text("openvino", engine=engine, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("openvino")) as server:
        yield server


@pytest.fixture(scope="session")
def openvino_unary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield the demo model on OpenVINO behind `decoupled: false`, shared by tests that leave it as it was."""
    engine = {"provider": "openvino", "dir": str(PROJECT / "examples/demo_model/openvino/target")}
    text = deployment_text("openvino", engine=engine, endpoints=ENDPOINTS, decoupled=False)
    with RunningServer(text, tmp_path_factory.mktemp("ov")) as server:
        yield server


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a compiled engine of the fake `tensorrt_llm`, shared by all tests that leave it as it was."""
    with compiled_server(tmp_path_factory.mktemp("compiled")) as server:
        yield server


@pytest.fixture(scope="session")
def compiled_unary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield `compiled` behind `decoupled: false`."""
    with compiled_server(tmp_path_factory.mktemp("compiled_unary"), decoupled=False) as server:
        yield server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a server of release 1, and what rolls others out on it."""
    with serving(tmp_path) as server:
        yield Site(server)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site for all tests of a module that leave release 1 in its process."""
    with serving(tmp_path_factory.mktemp("shared_site")) as server:
        yield Site(server)


@pytest.fixture(scope="session")
def texts() -> Texts:
    """Return what releases of a `Site` say to each prompt, by their seed: as their engine says it without a server."""
    return {seed: said_by_engine(seed) for seed in (1, 2, 3)}


@pytest.fixture
def hard_site(tmp_path: Path) -> Iterator[Site]:
    """Yield `site` as `make soak` has it."""
    with serving(tmp_path, **HARD) as server:
        yield Site(server)


@pytest.fixture(scope="session")
def hard_texts() -> Texts:
    """Return `texts` as `make soak` has them."""
    return {seed: said_by_engine(seed, max_tokens=HARD_TOKENS) for seed in (1, 2, 3)}


@pytest.fixture(scope="session", autouse=True)
def none_is_left() -> Iterator[None]:
    """Wait until the last servers have ended when the tests have."""
    yield
    RunningServer.wait_for_ends()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Yield a starter of servers that a test may spoil.

    It is called as `start_server(engine=..., triton=..., options=[...], admission=...)`.
    """
    started: list[RunningServer] = []

    def start(
        *,
        engine: dict[str, object] | None = None,
        triton: dict[str, object] | None = None,
        endpoints: Sequence[str] = ENDPOINTS[:1],
        options: tuple[str, ...] = (),
        **more: object,
    ) -> RunningServer:
        engine = engine or {"provider": "simulated", "step_ms": 5.0}
        text = deployment_text("spoiled", engine=engine, triton=triton, endpoints=endpoints, **more)
        server = RunningServer(text, tmp_path / str(len(started)), options=options)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.hurry()
        server.leave()


@pytest.fixture(params=["ensemble", "ensemble_graph", "tensorrt_llm_bls"])
def model(request: pytest.FixtureRequest) -> str:
    """Return a way from text to text: in one model, as Triton's own ensemble of three, or by upstream's fifth model."""
    return str(request.param)
