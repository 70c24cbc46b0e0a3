# SPDX-License-Identifier: Apache-2.0
"""Clients of a running Triton: the streaming client and the tools that are built on it."""
