# SPDX-License-Identifier: Apache-2.0
"""A rollout's definition as files for programs that split traffic outside the client library."""
