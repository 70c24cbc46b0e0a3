# SPDX-License-Identifier: Apache-2.0
"""The operations on a release that leaves, of the releases that an adapter serves beside its own."""

from serving.process.control_channel import Leaving
from serving.release_routing.release_routing import ReleaseRouting
from trireme.base.errors import Unavailable


def leaving_releases(releases: ReleaseRouting) -> Leaving:
    """Return the operations on one release that leaves, of those beside the adapter's own."""

    def leave(version: str) -> int:
        why = f"release {version} is being taken out; leave it out, or name another"
        releases.leave(version, Unavailable(why, reason="leaving"))
        return releases.num_running_on(version)

    def cancel(version: str) -> int:
        why = f"release {version} was taken out before this was done; send it again without a release"
        releases.cancel_on(version, Unavailable(why, reason="leaving"))
        return releases.num_running_on(version)

    return Leaving(leave=leave, status=releases.num_running_on, cancel=cancel)
