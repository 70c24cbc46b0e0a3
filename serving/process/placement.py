# SPDX-License-Identifier: Apache-2.0
"""The placement of a process on its part of the machine, before CUDA or OpenVINO are loaded."""

import os

from ensemble_configs.spec.release_spec import PlacementSpec
from trireme.base.errors import SpecError


def take_place(placement: PlacementSpec) -> None:
    """Place this process, and those that it starts, on the cores and devices of its deployment.

    Raises:
        SpecError: there is no such core.
    """
    os.environ.update(placement.environment())
    if placement.cpus is None:
        return
    check_cpus(placement)
    os.sched_setaffinity(0, placement.cpus)


def check_cpus(placement: PlacementSpec) -> None:
    """Check the cores of a placement. Raises: SpecError: a core is not one that this process may use."""
    there = os.sched_getaffinity(0)
    if missing := set(placement.cpus or ()) - there:
        raise SpecError(
            f"placement.cpus: there is no core {min(missing)} here; there are {_ranges(there)}; name some of these",
            field="placement.cpus",
            value=min(missing),
        )


def _ranges(numbers: set[int]) -> str:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, ends)) for ends in found)
