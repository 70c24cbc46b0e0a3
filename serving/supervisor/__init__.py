# SPDX-License-Identifier: Apache-2.0
"""Triton's parent: starts, watches and drains the server."""
