# SPDX-License-Identifier: Apache-2.0
"""The figures of this moment that admins see: requests, servers, and the rollout."""
