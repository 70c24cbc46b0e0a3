# SPDX-License-Identifier: Apache-2.0
"""The verbs of `trireme bench`; each is defined beside what it does."""

from clients.load.aiperf import aiperf
from clients.load.capacity_command import capacity
from clients.load.genai_perf import genai_perf
from clients.load.locust_command import locust
from clients.load.perf_analyzer import perf_analyzer
from clients.load.report.command import report
from clients.load.run_command import run

__all__ = ["aiperf", "capacity", "genai_perf", "locust", "perf_analyzer", "report", "run"]
