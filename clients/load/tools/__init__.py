# SPDX-License-Identifier: Apache-2.0
"""Other people's load generators on a workload of ours: perf_analyzer, genai-perf, aiperf, Locust."""
