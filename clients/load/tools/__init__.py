# SPDX-License-Identifier: Apache-2.0
"""Load generators of other projects on a workload of ours: perf_analyzer, genai-perf, aiperf, Locust."""
