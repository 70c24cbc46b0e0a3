# SPDX-License-Identifier: Apache-2.0
"""The writers of the pages on the gateway and on rollouts."""
