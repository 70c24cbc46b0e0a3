# SPDX-License-Identifier: Apache-2.0
"""Options of pytest, and what becomes of the processes that tests run in."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from serving.engines.seam.signal_stack import drop_signal_stack

if TYPE_CHECKING:
    from postgres_here import PostgresServer
    from redis_here import RedisServer

    from benchmarks.soak import Evidence

# Files of a minute and more begin: of files side by side the one that begins last would run alone at the end.
LONG = (
    "test_trtllm_ranks",
    "test_envoy_export",
    "test_gpu_image",
    "test_vllm_image",
    "test_rollout_on_triton",
    "test_rollout_modes_on_triton",
    "test_live_releases",
    "test_newer_triton",
    "test_drain_command",
    "test_supervision",
    "test_bench_on_triton",
    "test_chart_on_triton",
    "test_shutdown",
    "test_batch_on_triton",
    "test_observability_on_triton",
    "test_fuzzed_deployments",
)


# Before gRPC is imported. Its handlers of forks run in the child before that becomes another program, and now and then
# ended a tritonserver before it began ("epoll_wait error: Bad file descriptor", grpcio 1.85). No child here uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Tests use helpers of other rooms and of the folders `support`; pytest itself has only the folders that it has read.
_TESTS = Path(__file__).parent
sys.path[:0] = sorted({str(file.parent) for room in ("unit", "triton") for file in (_TESTS / room).rglob("*.py")})


with contextlib.suppress(ModuleNotFoundError):  # `trireme prove` runs one file in a container that has pytest alone
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)  # an example on a busy machine may take longer
    settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine-spec",
        type=Path,
        default=None,
        help="JSON of a real engine for test_engine_conformance.py, which then runs on nothing else; with -m gpu",
    )

    parser.addoption(
        "--tritonserver",
        type=Path,
        default=None,
        help="program of another Triton server for tests/triton, such as /opt/tritonserver/bin/tritonserver; "
        "without it the one on PATH, or of `make setup`",
    )

    parser.addoption(
        "--upstream-clients",
        type=Path,
        default=None,
        help="the folder triton_backend of a checkout of TensorRT-LLM, for test_upstream_flag_lists.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put another server where `trireme serve` looks first, also for all that tests start."""
    program = config.getoption("--tritonserver")
    if program is None:
        return
    if program.name != "tritonserver" or not os.access(program, os.X_OK):
        raise pytest.UsageError(f"--tritonserver {program}: name a program called tritonserver that can be run")
    os.environ["PATH"] = os.pathsep.join([str(program.resolve().parent), os.environ.get("PATH", os.defpath)])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is imported and collected, then or later: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """Run a PostgreSQL of the tests' own; a test that ends it starts it again."""
    pytest.importorskip("psycopg")
    from postgres_here import WHY_NOT, is_postgres_here, postgres_server  # noqa: PLC0415 - needs an extra

    if not is_postgres_here():
        pytest.skip(WHY_NOT)
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> "Iterator[RedisServer]":
    """Run a Redis for the tests of this process; each test has keys of its own."""
    from redis_here import WHY_NOT, RedisServer, is_redis_here  # noqa: PLC0415 - only where it is used

    if not is_redis_here():
        pytest.skip(WHY_NOT)
    with RedisServer() as server:
        yield server


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> "Evidence":
    """Return what a long test puts its figures into, and holds its goals by."""
    from benchmarks.soak import Evidence  # noqa: PLC0415 - only where it is used

    return Evidence(request.node.user_properties)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Mend the process: a test that unloaded a model of OpenVINO left it such that the next signal would end it."""
    drop_signal_stack()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Tell how a process ended that was lost, which pytest-xdist does not."""
    if not error:
        return
    status = node.gateway._io.popen.wait(30)
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    node.config.get_terminal_writer().line(f"\n{node.gateway.id} has ended with {how}")
