# SPDX-License-Identifier: Apache-2.0
"""The deployment of a running server, and its changes without an outage.

Releases come, are promoted and go by Triton's load calls, and nothing else is touched. A change is all or nothing. New
releases are loaded before any record of them is kept; a release that cannot be loaded is taken out again, and the
releases served before go on. A release that goes is drained first: its streams end on the server where they began.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ensemble_configs.changes.deployment_diff import DeploymentDiff, compare, loaded_versions
from ensemble_configs.changes.release_changes import model_named, without_release
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.doctor.preflight import check, check_releases
from serving.doctor.release_check import releases_in_use
from serving.live_releases.model_moves import (
    Say,
    drain_leaving,
    drop_changes,
    load_changes,
    refuse_reloads,
    unload_changes,
    wait_loaded,
)
from serving.live_releases.served_status import status_of
from serving.live_releases.stuck_unload import forget, wait_unloaded
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError, ServingError, SpecError, Unavailable

_AGAIN_S = 1.0


class LiveDeployment:
    """The deployment of one server, over the lives of its Triton processes. Changes wait for one another.

    Args:
        spec: the deployment that it serves first.
        repository: the model repository, which holds that deployment already or will once `start` is called.
        source: is named in the first line of each generated file.
        start: makes a Triton process that serves a deployment from `repository`.
        keep: takes the deployment that the next start is to serve.
        load_timeout_s: how long a release may take to load.
        tell: takes progress for a person.
    """

    def __init__(
        self,
        spec: DeploymentSpec,
        *,
        repository: Path,
        source: str,
        start: Callable[[DeploymentSpec], TritonProcess],
        keep: Callable[[DeploymentSpec], None],
        load_timeout_s: float,
        tell: Say,
    ) -> None:
        self.spec = spec
        self._repository = repository
        self._source = source
        self._start = start
        self._keep = keep
        self._load_timeout_s = load_timeout_s
        self._tell = tell
        self._id = secrets.token_hex(8)  # process ids of two machines may be the same
        self._server: TritonProcess | None = None
        self._started_s = time.monotonic()
        self._coming: set[tuple[str, int]] = set()  # models and versions that are being loaded
        self._ending: set[tuple[str, int]] = set()  # models and releases that are being taken out
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int], contextlib.ExitStack] = {}

    def check(self) -> None:
        """Check that the deployment can be served here, before anything is started; drop candidates that cannot.

        Raises:
            SpecError: what is missing, and the next step.
        """
        self._hold(self.spec)  # before the check, so that its result stays true
        try:
            check(self.spec)
        except SpecError as exc:
            if not self.give_up_candidate(exc.message):
                raise
            check(self.spec)
        self._write(self.spec)

    def close(self) -> None:
        """Release all holds, as nothing is served any more: the releases may be moved, and evicted from a cache."""
        for held in self._held.values():
            held.close()

    def start(self) -> TritonProcess:
        """Return a new process that serves the current deployment; the process before it has ended.

        A release that was still being taken out when that process ended is left out.
        """
        ending, self._ending = self._ending, set()
        self._leave_out(ending, "a process of it died, and tritonserver ended before it was taken out")
        self._hold(self.spec)
        self._write(self.spec)
        self._server, self._started_s = self._start(self.spec), time.monotonic()
        return self._server

    def run_dir(self) -> Path:
        """Return the folder of the server's processes.

        Raises:
            Unavailable: there is no server now.
        """
        server = self._server
        if server is None or server.exit_status is not None:
            raise Unavailable("the server is not ready; try again when it is", reason="starting")
        return server.run_dir

    def status(self) -> dict[str, object]:
        """Return the served models and releases, for callers that may change them."""
        return status_of(self.spec, self._server, server_id=self._id, served_s=time.monotonic() - self._started_s)

    def is_stable(self, adapter: str, version: int) -> bool:
        """Return whether a version answers users who name no release; a candidate's does not."""
        return any(adapter in model.triton_names and version == model.release for model in self.spec.models)

    def lose(self, adapter: str, version: int, reason: str) -> bool:
        """Go on without an adapter with a process that died or hangs; return whether the server can.

        It can where the adapter belongs to a release on trial, which a thread of its own takes out; where the adapter
        is only being loaded, so that its load fails by itself; or where it is not served any more.
        """
        if (adapter, version) in self._coming or (adapter, version) not in loaded_versions(self.spec):
            return True
        for model in self.spec.models:
            if adapter in model.triton_names and version in model.trials:
                if (model.name, version) in self._ending:  # this process has killed it
                    return True
                self._ending.add((model.name, version))
                self._tell(f"{reason}; taking out release {version} of {model.name}, which is on trial")
                threading.Thread(
                    target=self._take_out, args=(model.name, version), name="take-out", daemon=True
                ).start()
                return True
        return False

    def _take_out(self, model: str, number: int) -> None:
        """Take a release out, however often that takes; where the server ends meanwhile, `start` leaves it out."""
        server, told = self._server, ""
        assert server is not None
        while server.exit_status is None:
            try:
                for name in model_named(self.spec, model).triton_names:
                    server.kill_adapters(name, number)
                self.become(
                    lambda spec: without_release(spec, model_named(spec, model), number),
                    drain_timeout_s=0,
                    say=self._tell,
                )
            except (ServingError, OSError, psutil.NoSuchProcess) as exc:
                if str(exc) != told:
                    self._tell(f"release {number} of {model} is not taken out yet: {exc}")
                told = str(exc)
                time.sleep(_AGAIN_S)
            else:
                self._ending.discard((model, number))
                return

    def give_up_candidate(self, reason: str) -> bool:
        """Serve without the candidates from the next start on; False: there are none that could be to blame."""
        return self._leave_out({(model.name, number) for model in self.spec.models for number in model.trials}, reason)

    def _leave_out(self, releases: set[tuple[str, int]], reason: str) -> bool:
        """Serve without these releases on trial from the next start on; return whether one of them was served."""
        without = self.spec
        for model, number in sorted(releases):
            if number in model_named(without, model).trials:
                self._tell(f"{model}: release {number} is left out from now on, for {reason}")
                without = without_release(without, model_named(without, model), number)
        if without is self.spec:
            return False
        self._take(without)
        return True

    def become(
        self,
        change: Callable[[DeploymentSpec], DeploymentSpec],
        *,
        drain_timeout_s: float,
        say: Say,
        is_making_room: bool = False,
    ) -> None:
        """Serve the deployment that `change` makes of the current one.

        Args:
            drain_timeout_s: how long the streams of a release that goes may take; they are ended then.
            say: takes each step as text.
            is_making_room: unload what changes before anything is loaded; it serves nobody meanwhile.

        Raises:
            SpecError: the new deployment cannot be served here, or not without loading anew what is served; nothing was
                changed.
            ServerError: a release could not be loaded; the deployment before is served.
            Unavailable: the server is being started, changed or drained, or it died meanwhile.
        """
        with self._lock:
            server = self._loaded_server()
            old, new = self.spec, change(self.spec)
            diff = compare(old, new)
            if not diff.changes:
                say("nothing to change")
                self._take(new)
                return
            if not is_making_room:
                refuse_reloads(diff)
                _check_added(old, new)
            drain_leaving(server, diff, timeout_s=drain_timeout_s, say=say)
            self._hold(old, new)
            self._coming = {(change.name, version) for change in diff.changes for version in change.loaded}
            try:
                if is_making_room:
                    unload_changes(server, diff.changes, timeout_s=self._load_timeout_s, say=say)
                    changed = {change.name for change in diff.changes}
                    going = {version for version in loaded_versions(old) if version[0] in changed}
                    self._wait_unloaded(server, going, say, is_whole=True)
                    _check_added(old, new)
                self._write(new)
                load_changes(server, diff.changes, timeout_s=self._load_timeout_s, say=say)
            except (ServerError, SpecError, OSError) as exc:
                if server.exit_status is not None:
                    raise Unavailable(
                        f"tritonserver died while it loaded: {exc}; it is started again with what it served before",
                        reason="restarting",
                    ) from exc
                say(f"taking it back: {exc}")
                self._take_back(server, old, diff, was_unloaded=is_making_room)
                raise
            finally:
                self._coming = set()
            self._take(new)
            self._wait_unloaded(server, loaded_versions(old) - loaded_versions(new), say)
            wait_loaded(server, self._load_timeout_s)

    def _take_back(
        self,
        server: TritonProcess,
        old: DeploymentSpec,
        diff: DeploymentDiff,
        *,
        was_unloaded: bool,
    ) -> None:
        if was_unloaded:  # it serves nothing now: a new process with the deployment before is the surest way back
            server.kill()
            return
        self._write(old)
        drop_changes(server, diff.changes, timeout_s=self._load_timeout_s)
        with contextlib.suppress(ServerError):
            forget(server, self._repository, server.versions_failed() & self._coming, timeout_s=self._load_timeout_s)
        wait_loaded(server, self._load_timeout_s)

    def _wait_unloaded(
        self, server: TritonProcess, going: set[tuple[str, int]], say: Say, *, is_whole: bool = False
    ) -> None:
        timeout_s = self._load_timeout_s
        wait_unloaded(server, self._repository, going, is_whole=is_whole, timeout_s=timeout_s, say=say)

    def _write(self, spec: DeploymentSpec) -> None:
        write_repository(spec, root=self._repository, source=self._source)

    def _take(self, spec: DeploymentSpec) -> None:
        self._keep(spec)
        self.spec = spec
        self._hold(spec)

    def _hold(self, *specs: DeploymentSpec) -> None:
        """Keep the releases of these deployments, and no others, from being moved, sealed again or evicted."""
        wanted = {
            (model.name, release.release): release
            for spec in specs
            for model in spec.models
            for release in model.releases
        }
        for key in self._held.keys() - wanted:
            self._held.pop(key).close()
        for key in wanted.keys() - self._held:
            held = self._held[key] = contextlib.ExitStack()
            held.enter_context(releases_in_use(wanted[key]))

    def _loaded_server(self) -> TritonProcess:
        server = self._server
        if server is None or server.exit_status is not None or not server.is_loaded():
            raise Unavailable("the server is not ready; try again when it is", reason="starting")
        return server


def _check_added(old: DeploymentSpec, new: DeploymentSpec) -> None:
    known = {(model.name, release.release) for model in old.models for release in model.releases}
    check_releases(
        [release for model in new.models for release in model.releases if (model.name, release.release) not in known]
    )
