# SPDX-License-Identifier: Apache-2.0
"""A `tritonserver` process with everything it leaves behind: its process group, shared memory and control folder."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import psutil

from ensemble_configs.render.launch_flags import LOOPBACK, PrivatePorts, launch_flags
from ensemble_configs.render.sticky_keys import sticky_headers, sticky_parameters
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.end_times import GUARDS_END_S, KILLED_S, TRITON_EXIT_S, TRITON_STOP_S
from serving.doctor.server_features import closes_client_shm
from serving.engine_guard.process_tree import end_with_parent
from serving.frontend.common.messages import Upstream
from serving.process.installation import TritonInstallation
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.process.shared_memory import RegionOwner
from serving.triton.frontends import Frontends, private_ports
from serving.triton.listening_address import listening_address
from serving.triton.server_processes import engine_pids, guards_of, has_living_member, with_argument
from serving.triton.stuck_load import StuckLoad
from serving.triton.triton_api import CONTROL_KEY_HEADER, CannotLoad, TritonApi, reachable
from trireme.base.errors import Unavailable

# The APIs that ask for the control key. Health, metadata, inference and statistics stay open.
_RESTRICTED_APIS = ("model-repository", "trace", "logging")


class TritonProcess:
    """A server started by the constructor; `clean_up` must be called once it has ended."""

    def __init__(
        self,
        spec: DeploymentSpec,
        repository: Path,
        installation: TritonInstallation,
        log: BinaryIO | None,
        *,
        control_key: str | None = None,
        frontends: Frontends | None = None,
    ) -> None:
        """Start the server.

        Args:
            log: where its output goes; None: to this process's output.
            control_key: the key that its restricted APIs ask for; None: a new secret one.
            frontends: the processes that clients reach in its place; None: clients reach it at the deployment's ports.
        """
        self.run_dir = Path(tempfile.mkdtemp(prefix="trireme-"))  # only its owner can enter it
        self._regions = RegionOwner()
        self.control_key = control_key or secrets.token_urlsafe(24)
        self._is_turned_unready = False
        self._load = StuckLoad(spec, self.run_dir)
        self._frontends = frontends
        private = None if frontends is None else PrivatePorts(*private_ports())
        place = (
            f"{reachable(spec.triton.host)}:{spec.triton.http_port}"
            if private is None
            else f"{LOOPBACK}:{private.http}"
        )
        self._api = TritonApi(f"http://{place}", self.control_key)
        self._process = subprocess.Popen(
            self._command(spec, repository, installation, private),
            env=installation.environment(run_dir_variable=RUN_DIR_VARIABLE, run_dir=self.run_dir),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C reaches the parent alone; the group is killed as one. Not a session of its own: Linux may schedule
            # sessions as wholes (autogroup), and a client of another one then waits up to 90 ms for a core.
            process_group=0,
            pass_fds=[self._regions.descriptor],  # held open while one of them lives, though the parent may be killed
            # If the parent is killed, the server must not live on with nobody to drain it. Not SIGTERM: with streams
            # running it may crash while it stops (it frees what the stubs still use), and hang in its signal handler.
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
        )
        if frontends is not None and private is not None:
            frontends.serve(
                Upstream(
                    http_port=private.http,
                    grpc_port=private.grpc,
                    metrics_port=private.metrics,
                    run_dir=str(self.run_dir),
                    key_header=CONTROL_KEY_HEADER,
                    key=self.control_key,
                    own_models=frozenset(name for model in spec.models for name in model.triton_names),
                    has_open_shared_memory=spec.triton.allow_client_shm,
                    has_direct_responses=spec.triton.has_direct_responses,
                    sticky_headers=tuple(sticky_headers(spec)),
                    sticky_parameters=tuple(sticky_parameters(spec)),
                )
            )

    def _command(
        self, spec: DeploymentSpec, repository: Path, installation: TritonInstallation, private: PrivatePorts | None
    ) -> list[str]:
        if private is None:  # behind frontends, those listen on the host
            host = listening_address(spec.triton.host)
            spec = spec.model_copy(update={"triton": spec.triton.model_copy(update={"host": host})})
        # A server that does not close it by itself lets all clients at shared memory: there they need the key, too.
        apis = _RESTRICTED_APIS if closes_client_shm(installation) else (*_RESTRICTED_APIS, "shared-memory")
        restricted = f"{','.join(apis)}:{CONTROL_KEY_HEADER}={self.control_key}"
        options = {
            "model-repository": repository,
            "http-restricted-api": restricted,
            "grpc-restricted-protocol": restricted,
            "backend-config": f"python,shm-region-prefix-name={self._regions.prefix}",
            "exit-timeout-secs": TRITON_EXIT_S,
        }
        if installation.backend_directory is not None:
            options["backend-directory"] = installation.backend_directory
        return [
            str(installation.tritonserver),
            "--disable-auto-complete-config",
            *(f"--{name}={value}" for name, value in [*launch_flags(spec, private), *options.items()]),
        ]

    @property
    def pid(self) -> int:
        """Return the process id of tritonserver."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Return the exit status of tritonserver; None while it runs."""
        return self._process.poll()

    def is_loaded(self) -> bool:
        """Return whether the server holds what it was told to hold: nothing is coming, going, or was refused.

        Until 2.51 its readiness meant that. Since core #473 (2.68) it also says no while the stub of any version is
        dead, a candidate's too. Such a server serves, and can be repaired: what repairs must not ask for readiness.
        """
        return not self._is_turned_unready and (self.is_ready() or self._is_unready_for_a_process())

    def _is_unready_for_a_process(self) -> bool:
        try:
            versions = self._api.index()
        except (Unavailable, urllib.error.HTTPError):
            return False
        # The index omits a model that is not in the repository any more: that nothing is coming or going is
        # not enough, a version must own up.
        return all(map(_is_at_rest, versions)) and any(
            not self._api.says_yes(f"/v2/models/{one['name']}/versions/{one['version']}/ready")
            for one in versions
            if one.get("state") == "READY"
        )

    def is_stuck(self) -> bool:
        """Return whether its start will not end, though all models of Trireme's have been loaded; see `StuckLoad`."""
        return self._load.is_stuck()

    def is_ready(self) -> bool:
        """Return whether the server says that it and every model of it take requests; see `is_loaded`."""
        return self._api.says_yes("/v2/health/ready")

    def turn_unready(self) -> None:
        """Make "ready" say no, for good, while everything goes on.

        Triton has no call for that. But its readiness is strict: a model that could not be loaded makes the server
        unready, and asking for one that has no backend costs milliseconds and touches no other model.

        Raises:
            Unavailable: the server does not answer.
        """
        self._is_turned_unready = True
        field = [{"name": "none", "data_type": "TYPE_BOOL", "dims": [1]}]
        config = json.dumps({"backend": "draining", "input": field, "output": field})
        with contextlib.suppress(CannotLoad):  # the refusal that was asked for
            self._api.control("load", "draining", {"config": config, "file:1/none": "bm9uZQ=="}, timeout_s=5)

    def load(self, model: str, *, timeout_s: float) -> None:
        """Load a model again from its files: versions come and go, and unchanged versions are not touched.

        Raises:
            CannotLoad: a version could not be loaded; the text is Triton's.
            Unavailable: the server does not answer, or not in time.
        """
        self._api.control("load", model, {}, timeout_s=timeout_s)

    def unload(self, model: str, *, timeout_s: float) -> None:
        """Unload a model with all its versions. Raises: CannotLoad; Unavailable, like `load`."""
        self._api.control("unload", model, {}, timeout_s=timeout_s)

    def versions_failed(self) -> set[tuple[str, int]]:
        """Return the models and versions that could not be loaded. Raises: Unavailable: the server does not answer."""
        return self._versions(lambda one: one.get("state") == "UNAVAILABLE" and not _is_at_rest(one))

    def versions_unloading(self) -> set[tuple[str, int]]:
        """Return the models and versions that are not gone yet. Raises: Unavailable: the server does not answer."""
        return self._versions(lambda one: one.get("state") == "UNLOADING")

    def _versions(self, is_meant: Callable[[Mapping[str, str]], bool]) -> set[tuple[str, int]]:
        listed = self._api.index()
        return {(one["name"], int(one["version"])) for one in listed if one.get("version") and is_meant(one)}

    def kill_adapters(self, model: str, version: int) -> None:
        """Send SIGKILL to the processes of one version of a model: its stub, and its engine."""
        for process in with_argument(self.pid, f"/{model}/{version}/model.py", f"/{model}/{version}"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def is_stopped(self, model: str = "", version: int = 0) -> bool:
        """Return whether a signal has stopped tritonserver, or the stub of one version of a model."""
        stubs = with_argument(self.pid, f"/{model}/{version}/model.py") if model else [psutil.Process(self.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(process.status() == psutil.STATUS_STOPPED for process in stubs)
        return False

    def answers(self, *, timeout_s: float) -> bool:
        """Return whether the HTTP endpoint answers at all in time, ready or not."""
        return self._api.answers(timeout_s=timeout_s)

    def engine_pids(self) -> dict[tuple[str, int], int]:
        """Return the process ids of the engines, by model and version."""
        return engine_pids(self.pid)

    def close_doors(self, because: Unavailable) -> None:
        """Have the frontends refuse every request, so that none meets models that are going."""
        if self._frontends is not None:
            self._frontends.refuse(because)

    def stop(self) -> None:
        """Send SIGTERM, and give the server time to end; `kill` must follow."""
        if self.exit_status is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TRITON_STOP_S)

    def kill(self) -> None:
        """Send SIGKILL to the rest of the server and its children; return when they are gone, and their ports free.

        The guards of engines with ranks are in groups of their own: each ends its engine, and frees its GPUs, first.
        """
        if self._frontends is not None:
            self._frontends.down()
        with contextlib.suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline_s = time.monotonic() + KILLED_S
        while has_living_member(self.pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        _, left = psutil.wait_procs(guards_of(self.run_dir), timeout=GUARDS_END_S)
        for guard in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                guard.kill()

    def clean_up(self) -> None:
        """Remove what a killed server leaves behind: its shared memory, and the control folder."""
        self._regions.remove()
        shutil.rmtree(self.run_dir, ignore_errors=True)


def _is_at_rest(version: Mapping[str, str]) -> bool:
    """Return whether an entry of Triton's index is loaded, or is not and was not meant to be."""
    return version.get("state") in (None, "READY") or version.get("reason") == "unloaded"
