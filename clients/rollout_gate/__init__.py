# SPDX-License-Identifier: Apache-2.0
"""Statistics that judge a candidate beside the stable release; they know nothing of rollouts."""
