# SPDX-License-Identifier: Apache-2.0
"""Every dashboard, by the name of its file."""

from observability.dashboards.capacity import capacity_dashboard
from observability.dashboards.gpu import gpu_dashboard
from observability.dashboards.panels import Dashboard
from observability.dashboards.rollout import rollout_dashboard
from observability.dashboards.serving import serving_dashboard
from observability.rules.objectives import Objectives


def dashboards(objectives: Objectives) -> dict[str, Dashboard]:
    """Return every dashboard by its file's name; panels name the targets of `objectives`."""
    return {
        "serving": serving_dashboard(objectives),
        "capacity": capacity_dashboard(),
        "rollout": rollout_dashboard(),
        "gpu": gpu_dashboard(),
    }
