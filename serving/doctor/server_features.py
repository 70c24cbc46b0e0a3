# SPDX-License-Identifier: Apache-2.0
"""The answers of a tritonserver about features that differ between versions, with their consequences here.

Nothing looks at a version number: flags are read from the server's own `--help`, the rest is asked of a server that
runs (`serving.doctor.server_probe`). The differences themselves are listed in docs/support.md.
"""

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ensemble_configs.render.launch_flags import CLIENT_SHM_FLAG
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.process.installation import TritonInstallation
from trireme.base.errors import ServerError, SpecError

_HTTP_SIZE_FLAG = "http-max-input-size"
_HELP_TIMEOUT_S = 30
_FLAG = re.compile(r"^\s*--([a-z0-9-]+)\b", re.MULTILINE)


@dataclass(frozen=True)
class ServerFeatures:
    """The answers of one tritonserver with one numpy; each is an observed fact, none follows from the version.

    Attributes:
        program: path of the server that was asked.
        version: version in its metadata; for people.
        numpy: version of numpy in the stub.
        are_tensors_whole: tensors come through a Python model as they were sent.
        closes_client_shm: shared memory of clients is off unless `--allow-client-shm=true`.
        limits_http_bytes: a JSON body has a largest size, `--http-max-input-size`.
        limits_json_depth: JSON nested more than 100 deep is refused, before it can overflow a stack.
        is_unready_with_dead_stub: the server's readiness says no while the process of a Python model is dead.
        calls_is_ready: a Python model's own `is_ready` decides whether it is ready, too.
        knows_max_inflight_requests: an ensemble's config may hold `max_inflight_requests`.
        reads_pythonpath: a stub looks for modules on PYTHONPATH.
    """

    program: str
    version: str
    numpy: str
    are_tensors_whole: bool
    closes_client_shm: bool
    limits_http_bytes: bool
    limits_json_depth: bool
    is_unready_with_dead_stub: bool
    calls_is_ready: bool
    knows_max_inflight_requests: bool
    reads_pythonpath: bool


def consequences(features: ServerFeatures) -> list[tuple[str, bool, str]]:
    """Return each question in words, its answer, and the consequence of the answer here."""
    yes_or_no = {
        "tensors come through a Python model whole": (
            features.are_tensors_whole,
            "", f"numpy {features.numpy} cannot be used with it: `trireme serve` refuses; install numpy<2",
        ),
        "shared memory of clients is off unless asked for": (
            features.closes_client_shm,
            "triton.allow_client_shm opens it", "closed by the control key; triton.allow_client_shm is refused",
        ),
        "a JSON body over HTTP has a largest size": (
            features.limits_http_bytes, "64 MiB", "the frontend has one (triton.max_request_bytes, docs/frontend.md)",
        ),
        "JSON nested over 100 deep is refused": (
            features.limits_json_depth, "", "the frontend reads it in its place (docs/frontend.md)",
        ),
        "not ready while the process of a model is dead": (
            features.is_unready_with_dead_stub, "repaired all the same", "`trireme serve` finds it by itself",
        ),
        "asks a Python model whether it is ready": (
            features.calls_is_ready, "nothing more is said there: --health-port knows of engines", "",
        ),
        "ensembles may hold max_inflight_requests": (features.knows_max_inflight_requests, "not used", ""),
        "a stub looks for modules on PYTHONPATH": (
            features.reads_pythonpath, "the server's own modules come first there", "",
        ),
    }  # fmt: skip
    return [(question, answer, yes if answer else no) for question, (answer, yes, no) in yes_or_no.items()]


@functools.cache
def known_flags(installation: TritonInstallation) -> frozenset[str]:
    """Return the options that a server knows, without dashes, as its `--help` lists them.

    Raises:
        ServerError: the server cannot be run.
    """
    command = [str(installation.tritonserver), "--help"]
    env = installation.environment(run_dir_variable="TRIREME_UNUSED", run_dir=Path("/nonexistent"))
    try:
        # Its exit status says nothing: 2.51 ends with 1 after --help.
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_HELP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ServerError(f"{installation.tritonserver} --help cannot be run: {exc}; install it again") from exc
    flags = frozenset(_FLAG.findall(result.stdout + result.stderr))
    if "http-port" not in flags:
        said = " ".join((result.stderr or result.stdout).split())[:300]
        raise ServerError(f"{installation.tritonserver} --help lists no options ({said}); is it a tritonserver?")
    return flags


def closes_client_shm(installation: TritonInstallation) -> bool:
    """Return whether shared memory of clients is off on this server unless it is told otherwise."""
    return CLIENT_SHM_FLAG in known_flags(installation)


def limits_http_bytes(installation: TritonInstallation) -> bool:
    """Return whether this server has a largest size of a JSON body."""
    return _HTTP_SIZE_FLAG in known_flags(installation)


def refuse_missing_flags(triton: TritonSpec, installation: TritonInstallation) -> None:
    """Refuse a deployment that needs options which the server does not have.

    Raises:
        SpecError: which field, and what to do.
    """
    if triton.allow_client_shm and not closes_client_shm(installation):
        raise SpecError(
            f"triton.allow_client_shm: true, but {installation.tritonserver} has no --{CLIENT_SHM_FLAG}, and would let "
            "clients at the memory of its models, too; leave it out, or serve on Triton 26.05 or later",
            field="triton.allow_client_shm",
            value=True,
        )


def describe_server(triton: TritonSpec, installation: TritonInstallation) -> str:
    """Return which server is started and what its flags say, as a line for its log."""
    shm = "open" if triton.allow_client_shm else "closed"
    how = f"--{CLIENT_SHM_FLAG}" if closes_client_shm(installation) else "the control key"
    size = "limited by the server" if limits_http_bytes(installation) else "without a limit"
    return (
        f"{installation.tritonserver}: shared memory of clients {shm} by {how}; JSON over HTTP {size}; "
        "`trireme doctor --server` says what else it can do"
    )


def needs_asking_about_numpy() -> bool:
    """Return whether a stub may fail with the numpy of this environment; none fails with numpy 1."""
    return int(np.__version__.partition(".")[0]) >= 2


def refuse_broken_tensors(features: ServerFeatures) -> None:
    """Refuse a server with stubs that cannot handle the numpy of this environment.

    Raises:
        SpecError: the stubs fail; the text gives the cure.
    """
    if not features.are_tensors_whole:
        raise SpecError(
            f"numpy {features.numpy} breaks the Python stub of tritonserver {features.version}: tensors do not come "
            "through it whole; run `make setup`, which installs numpy<2, or serve on a newer Triton"
        )
