# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: servers, clients, workloads, and the report of a result."""
