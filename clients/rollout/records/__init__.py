# SPDX-License-Identifier: Apache-2.0
"""The records of rollouts on disk: plan, state, store."""
