# SPDX-License-Identifier: Apache-2.0
"""The time that a server takes to end once its streams have ended: each part of it, and their sum for a pod's grace.

Whatever waits for an end goes by these: an engine's guard, `serving.supervisor`, the leader of a node group, and the
chart.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_configs.spec.deployment import DeploymentSpec

CANCEL_S = 5.0  # for streams that are ended with an error to have had it
TRITON_EXIT_S = 5  # that Triton is given to unload its models, as --exit-timeout-secs
TRITON_STOP_S = TRITON_EXIT_S + 5.0  # from SIGTERM until it is killed
KILLED_S = 5.0  # from SIGKILL until its processes are gone
MAX_CLOSE_S = 120.0  # that any engine may take to free what its ranks hold (`close_timeout_s` of its spec)
# An engine that takes time to close has a guard, which outlives Triton and its stubs.
GUARD_S = 20.0  # beside what the engine may take: for the guard to end what the engine has left behind
GUARDS_END_S = MAX_CLOSE_S + GUARD_S + 10.0
# Of a group, behind its server.
GROUP_STOP_S = 15.0  # for upstream's script to end the ranks
GROUP_KILL_S = 15.0  # for mpirun to end them
_MARGIN_S = 10.0  # for a busy node

SERVER_END_S = CANCEL_S + TRITON_STOP_S + KILLED_S + _MARGIN_S


def engine_close_s(spec: "DeploymentSpec") -> float:
    """Return how long the slowest engine of a server may take to free what its ranks hold; 0 where none takes time.

    Engines close side by side.
    """
    return max(release.engine.close_timeout_s for model in spec.models for release in model.releases)


def server_end_s(spec: "DeploymentSpec", *, num_nodes: int = 1) -> int:
    """Return the seconds from the end of a server's last stream to the end of its process, at most."""
    close_s = engine_close_s(spec)
    guarded_s = close_s + GUARD_S if close_s else 0.0
    group_s = GROUP_STOP_S + GROUP_KILL_S if num_nodes > 1 else 0.0
    return math.ceil(SERVER_END_S + guarded_s + group_s)
