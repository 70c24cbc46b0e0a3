# SPDX-License-Identifier: Apache-2.0
"""The estimate of how long a rollout takes, from the traffic that its server has had."""
