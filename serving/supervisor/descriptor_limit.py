# SPDX-License-Identifier: Apache-2.0
"""The limit of file descriptors that every process of a server inherits from `trireme serve`: raised, or reported.

tritonserver, with the most of them, had 70 with one model on two cores (2.51); each client's connection is one more.
"""

import os
import resource

from ensemble_configs.render.model_configs import adapter_counts
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.base.errors import SpecError

_OF_SERVER = 64  # its front ends, libraries and log
_OF_CORE = 2  # gRPC's pollers
_OF_ADAPTER = 4
_OF_GPU = 32
_PLENTY = 65536  # the most to raise it to: a limit of a billion is slow for a program that closes every descriptor


def needed_descriptors(spec: DeploymentSpec) -> int:
    """Return how many file descriptors tritonserver needs for a deployment without any client."""
    num_adapters = sum(sum(adapter_counts(model).values()) for model in spec.models)
    num_adapters += len(spec.embedding_models) + len(spec.extra_models)
    gpus = {gpu for release in spec.releases for gpu in release.gpus}
    return _OF_SERVER + _OF_CORE * (os.cpu_count() or 1) + _OF_ADAPTER * num_adapters + _OF_GPU * len(gpus)


def raise_descriptor_limit(spec: DeploymentSpec) -> str | None:
    """Raise the soft limit as far as the hard limit allows; return a warning where the limit stays low.

    Raises:
        SpecError: the limit does not even let the server start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _PLENTY if hard == resource.RLIM_INFINITY else min(hard, _PLENTY)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY:
        return None
    needed = needed_descriptors(spec)
    how = "raise the hard limit (`ulimit -Hn`, LimitNOFILE of systemd, --ulimit nofile of a container)"
    if soft < needed:
        raise SpecError(
            f"a process may have {soft} file descriptors here (ulimit -n), and tritonserver needs {needed} for this "
            f"deployment before the first client; {how}",
            field="ulimit -n",
            value=soft,
        )
    seats = sum(release.engine.max_num_seqs for release in spec.releases)
    if soft < needed + seats:
        return (
            f"a process may have {soft} file descriptors here (ulimit -n): enough for about {soft - needed} "
            f"connections of clients, and the engines take {seats} requests at once; {how}"
        )
    return None
