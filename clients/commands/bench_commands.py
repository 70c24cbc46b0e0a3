# SPDX-License-Identifier: Apache-2.0
"""The verbs of `trireme bench`; each is defined beside what it does."""

from clients.load.capacity.capacity_command import capacity
from clients.load.run_command import run
from clients.load.tools.aiperf import aiperf
from clients.load.tools.genai_perf import genai_perf
from clients.load.tools.locust_command import locust
from clients.load.tools.perf_analyzer import perf_analyzer
from clients.load_report.bench_report_command import report

__all__ = ["aiperf", "capacity", "genai_perf", "locust", "perf_analyzer", "report", "run"]
