# SPDX-License-Identifier: Apache-2.0
"""Shared parts of benchmarks: servers, clients, workloads, and the report of a result."""
