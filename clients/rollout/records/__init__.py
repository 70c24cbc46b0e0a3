# SPDX-License-Identifier: Apache-2.0
"""What is known of rollouts, on disk: plan, state, store."""
