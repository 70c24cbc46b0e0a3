# SPDX-License-Identifier: Apache-2.0
"""The operations of a server for a rollout: its releases, its split, its outcomes, and the right to steer it."""

from pathlib import Path

from serving.live_releases.live_deployment import LiveDeployment
from serving.live_releases.live_split import LiveSplit
from serving.live_releases.release_control import release_handlers
from serving.live_releases.steering import Steering
from trireme.base.unix_rpc import Handler

_CHANGES = ("add", "replace", "promote", "settle", "remove", "split")


def rollout_handlers(live: LiveDeployment, folder: Path) -> dict[str, Handler]:
    """Return the handlers by operation; what changes the server is for the rollout that steers it, if any does.

    Args:
        folder: folder of the server, for the outcomes.
    """
    steering = Steering()
    handlers = release_handlers(live) | LiveSplit(live, folder).handlers()
    return steering.guarded(handlers, _CHANGES) | steering.handlers()
