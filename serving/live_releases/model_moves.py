# SPDX-License-Identifier: Apache-2.0
"""The load calls of Triton that make one deployment of another, in an order that no request notices.

New versions are loaded engine first, for the other models are clients of the engine; versions that go were drained, and
are unloaded from the outside in.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ensemble_configs.changes.deployment_diff import DeploymentDiff, Kind, ModelChange
from ensemble_configs.spec.model_names import GRAPH, ROUTING_MODELS, prefix_of
from serving.process.control_channel import ask_all
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError, SpecError, Unavailable

Say = Callable[[str], None]

_POLL_S = 0.05
_CANCEL_TIMEOUT_S = 5.0
_DELIVERY_S = 0.3  # from an adapter's last response to the client: Triton's own queues, which nothing reports on


def refuse_reloads(diff: DeploymentDiff) -> None:
    """Refuse a change that would load a served version anew; the graph has no process, and its versions share a config.

    Raises:
        SpecError: a served version would be loaded anew.
    """
    if diff.restarts:
        raise SpecError(f"only another start of the server changes {', '.join(diff.restarts)}", field="triton")
    in_place = (Kind.ADDED, Kind.REMOVED, Kind.VERSIONS)
    for change in diff.changes:
        if change.kind not in in_place and not change.name.endswith(GRAPH):
            raise SpecError(
                f"{change.name} would be {change.kind.value}, for {'; '.join(change.why)} differs; such a release "
                "needs a server of its own",
                field="release",
            )


def drain_leaving(server: TritonProcess, diff: DeploymentDiff, *, timeout_s: float, say: Say) -> None:
    """Close the versions that go to new requests, and wait for their streams; streams that take too long are ended."""
    leaving = [f"{change.name}-{version}" for change in diff.changes for version in change.dropped]
    if not leaving:
        return
    elsewhere = [  # models of other releases, whose requests the engine of a release that goes may answer
        (f"{prefix_of(change.name, 'tensorrt_llm')}{step}", version)
        for change in diff.changes
        if change.name.endswith("tensorrt_llm")
        for version in change.dropped
        for step in ROUTING_MODELS
    ]

    def num_streams(operation: str) -> int:
        own = sum(_num_streams(server, operation, adapter) for adapter in leaving)
        return own + sum(_num_streams(server, f"{operation}_release", name, version) for name, version in elsewhere)

    if num := num_streams("leave"):
        say(f"waiting for {num} streams of what goes, {timeout_s:g} s at most")
    if not _ends(num_streams, timeout_s):
        say("ending the streams that are not done")
        num_streams("cancel")
        _ends(num_streams, _CANCEL_TIMEOUT_S)
    time.sleep(_DELIVERY_S)


def load_changes(server: TritonProcess, changes: Sequence[ModelChange], *, timeout_s: float, say: Say) -> None:
    """Load and unload models until Triton serves what the files say.

    Args:
        timeout_s: for each model; the processes of a model that takes longer are killed, which ends its load.

    Raises:
        CannotLoad: a model could not be loaded, or not in time.
        Unavailable: the server does not answer.
    """
    for change in _in_order(changes):
        if change.kind is Kind.REMOVED:
            say(f"unloading {change.name}")
            server.unload(change.name, timeout_s=timeout_s)
            continue
        versions = ", ".join(map(str, change.loaded))
        say(f"loading {change.name} {versions}" if versions else f"dropping {change.name} {change.dropped[0]}")
        begun_s = time.monotonic()
        with _ended_if_it_hangs(server, change, timeout_s):
            server.load(change.name, timeout_s=timeout_s + _CANCEL_TIMEOUT_S)
        if versions:
            say(f"loaded {change.name} {versions} in {time.monotonic() - begun_s:.1f} s")


def unload_changes(server: TritonProcess, changes: Sequence[ModelChange], *, timeout_s: float, say: Say) -> None:
    """Unload all versions of the models that change, so that there is room for others.

    Raises:
        CannotLoad: Triton refused.
        Unavailable: the server does not answer.
    """
    for change in reversed(_in_order(changes)):
        if change.kind is not Kind.ADDED:
            say(f"unloading {change.name}")
            server.unload(change.name, timeout_s=timeout_s)


def drop_changes(server: TritonProcess, changes: Sequence[ModelChange], *, timeout_s: float) -> None:
    """Have Triton serve what the files say again, after `load_changes` failed; unchanged versions are not touched."""
    for change in reversed(_in_order(changes)):
        with contextlib.suppress(ServerError, OSError):
            if change.kind is Kind.ADDED:
                server.unload(change.name, timeout_s=timeout_s)
            else:
                server.load(change.name, timeout_s=timeout_s)


def wait_loaded(server: TritonProcess, timeout_s: float) -> None:
    """Wait until nothing is being loaded or unloaded any more; until then Triton calls itself not ready."""
    deadline_s = time.monotonic() + timeout_s
    while not server.is_loaded() and server.exit_status is None and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _ended_if_it_hangs(server: TritonProcess, change: ModelChange, timeout_s: float) -> Iterator[None]:
    """Kill a load that takes longer than `timeout_s`: Triton waits for a loading stub without end.

    Triton loads nothing else of the model meanwhile.
    """

    def end() -> None:
        for version in change.loaded:
            server.kill_adapters(change.name, version)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _num_streams(server: TritonProcess, operation: str, adapter: str, release: int | None = None) -> int:
    """Return how many streams an adapter holds; an adapter that does not answer has none to wait for."""
    try:
        return ask_all(server.run_dir, operation, adapter=adapter, release=release)
    except Unavailable:
        return 0


def _ends(num_streams: Callable[[str], int], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while num_streams("status"):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _in_order(changes: Sequence[ModelChange]) -> list[ModelChange]:
    coming = [change for change in changes if change.loaded or not change.dropped]
    going = [change for change in changes if change.dropped and not change.loaded]
    return sorted(coming, key=lambda change: not change.name.endswith("tensorrt_llm")) + going[::-1]
