# SPDX-License-Identifier: Apache-2.0
"""Releases on a node's own disk: copied whole or not at all."""
