# SPDX-License-Identifier: Apache-2.0
"""The memory cost of a reload: Triton loads an engine before it lets go of the one that it replaces."""

from collections.abc import Mapping
from dataclasses import dataclass

from build_engines.planner.deployment_plan import DeploymentPlan
from ensemble_configs.changes.deployment_diff import DeploymentDiff
from ensemble_configs.spec.deployment import DeploymentSpec


@dataclass(frozen=True)
class DevicePeak:
    """The most of a device's memory that is used while a change is made."""

    device: str
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    memory_bytes: int | None  # None: not known

    @property
    def missing_bytes(self) -> int:
        """Return the bytes that the device does not have."""
        return 0 if self.memory_bytes is None else max(0, self.peak_bytes - self.memory_bytes)


def peaks(
    diff: DeploymentDiff,
    new: DeploymentSpec,
    *,
    before: DeploymentPlan,
    after: DeploymentPlan,
    memory_bytes: Mapping[str, int],
) -> list[DevicePeak]:
    """Return the peak of every device, if the old engines stay until all new ones are loaded.

    A server that has to be started again ends the old ones first.
    """
    old = {device.name: device.used_bytes for device in before.devices}
    then = {device.name: device.used_bytes for device in after.devices}
    loading = dict.fromkeys(old.keys() | then, 0)
    models = {model.name: model for model in new.models}
    for part in after.engines:
        if part.pool is None and diff.loads_engine(models[part.model], part.release):
            for device in part.devices:
                loading[device] += part.num_bytes
    found = []
    for name in sorted(loading):
        is_side_by_side = loading[name] and not diff.restarts
        peak = old.get(name, 0) + loading[name] if is_side_by_side else max(old.get(name, 0), then.get(name, 0))
        found.append(DevicePeak(name, old.get(name, 0), peak, then.get(name, 0), memory_bytes.get(name)))
    return found
