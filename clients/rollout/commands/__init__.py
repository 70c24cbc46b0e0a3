# SPDX-License-Identifier: Apache-2.0
"""The verbs of `trireme rollout`."""
