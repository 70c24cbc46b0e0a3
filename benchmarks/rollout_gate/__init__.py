# SPDX-License-Identifier: Apache-2.0
"""The rollout gate on simulated rollouts, beside other ways to judge them."""
