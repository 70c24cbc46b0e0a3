# SPDX-License-Identifier: Apache-2.0
"""Versions with an unload that is stuck in Triton, and the calls that make Triton forget them.

Triton 2.51 frees a version once its last request is freed, and loses a request now and then: of a gRPC stream that its
client cancels, or that breaks off, just as the last response is on its way, the request stays for ever; and so do
requests at an adapter whose process died. So does their version, "UNLOADING", with all processes and their memory; and
the server calls itself not ready from then on. It does so as well for as long as it remembers a version that could not
be loaded; neither a load call without the version nor an empty folder helps. Both are forgotten once something else is
loaded under the same number, and unloaded.
"""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from ensemble_configs.render.model_configs import GENERATED
from serving.process.control_channel import Pulse, feel_pulse
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError, Unavailable

Version = tuple[str, int]  # name of a Triton model, and its version

LOST_S = 3.0  # Triton asks a version without requests to end within milliseconds
_POLL_S = 0.05
_PULSE_S = 1.0
_STAND_IN = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = "[UNAVAILABLE reason=leaving] this release is being taken out; send this again"
        for request in requests:
            error = pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE)
            response = pb_utils.InferenceResponse(error=error)
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CONFIG = """{generated}nothing, for a moment
name: "{name}"
backend: "python"
version_policy {{ specific {{ versions: [] }} }}
input {{ name: "none" data_type: TYPE_BOOL dims: [1] }}
output {{ name: "none" data_type: TYPE_BOOL dims: [1] }}
"""
_VERSIONS = re.compile(r"(version_policy\s*{\s*specific\s*{\s*versions: \[)([^]]*)(\])")


def wait_unloaded(
    server: TritonProcess,
    root: Path,
    dropped: set[Version],
    *,
    is_whole: bool,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    """Wait until versions are unloaded: the call returns before that, and their processes hold memory until then.

    Args:
        root: the model repository.
        dropped: versions with a requested unload and no stream left.
        is_whole: their models were unloaded as a whole, whatever versions the repository holds.
        timeout_s: for versions that take long to end. A stuck version is not waited for.

    Raises:
        ServerError: Triton cannot be made to forget a stuck version.
    """
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < timeout_s and server.exit_status is None:
        try:
            # Triton says nothing of a model that is not in the repository any more.
            unasked = {version for version in dropped if _is_unasked(server, version)}
            going = unasked | dropped & (server.versions_unloading() | set(server.engine_pids()))
            if not going:
                return
            if unasked and time.monotonic() - begun_s >= LOST_S:
                names = ", ".join(f"{name} {number}" for name, number in sorted(unasked))
                say(f"Triton has lost a request of {names}, and would wait for it for ever: its processes are ended")
                forget(server, root, unasked, is_whole=is_whole, timeout_s=timeout_s)
                dropped = dropped - unasked
        except Unavailable:  # the watch over the server sees to it
            return
        time.sleep(_POLL_S)


def _is_unasked(server: TritonProcess, version: Version) -> bool:
    """Return whether an adapter of a version was not asked to end, and lives or died without that."""
    pulses = {feel_pulse(path, timeout_s=_PULSE_S) for path in _sockets(server, version)}
    return not pulses.isdisjoint({Pulse.ALIVE, Pulse.DEAD})


def _sockets(server: TritonProcess, version: Version) -> list[Path]:
    name, number = version
    return list(server.run_dir.glob(f"{name}-{number}-*.sock"))


def forget(
    server: TritonProcess, root: Path, versions: Iterable[Version], *, is_whole: bool = False, timeout_s: float
) -> None:
    """Kill what is left of versions that are not served, and have Triton forget them.

    Args:
        root: the model repository; the folders of these versions are removed from it.
        is_whole: no version of their models is served, or may be loaded by this.

    Raises:
        ServerError: Triton does not take a stand-in.
    """
    for name, same in groupby(sorted(versions), key=lambda version: version[0]):
        numbers = [number for _, number in same]
        for number in numbers:
            for path in _sockets(server, (name, number)):
                path.unlink(missing_ok=True)  # else the watch over the adapters would take it for one that died
            server.kill_adapters(name, number)
        is_served = not is_whole and (root / name).exists()
        with _stand_ins(root / name, numbers, is_served=is_served):
            server.load(name, timeout_s=timeout_s)
        if is_served:
            server.load(name, timeout_s=timeout_s)
        else:
            server.unload(name, timeout_s=timeout_s)


@contextlib.contextmanager
def _stand_ins(model: Path, numbers: list[int], *, is_served: bool) -> Iterator[None]:
    """Keep stand-ins in the repository, beside served versions: versions that load and refuse all requests."""
    config = model / "config.pbtxt"
    before = config.read_text(encoding="utf-8") if config.exists() else None
    text = before if is_served and before else _CONFIG.format(generated=GENERATED, name=model.name)
    folders = [model / str(number) for number in numbers]
    try:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "model.py").write_text(_STAND_IN, encoding="utf-8")
        config.write_text(_with_versions(text, numbers), encoding="utf-8")
        yield
    finally:
        if before is None:
            shutil.rmtree(model, ignore_errors=True)
        else:
            config.write_text(before, encoding="utf-8")
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def _with_versions(config: str, numbers: list[int]) -> str:
    found = _VERSIONS.search(config)
    if found is None:
        raise ServerError("a config.pbtxt without a list of versions is not one of ours")
    known = [int(number) for number in found[2].split(",") if number.strip()]
    listed = ", ".join(map(str, sorted({*known, *numbers})))
    return config[: found.start()] + found[1] + listed + found[3] + config[found.end() :]
