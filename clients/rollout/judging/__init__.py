# SPDX-License-Identifier: Apache-2.0
"""The judges of a rollout, by its mode, and the evidence that they read."""
