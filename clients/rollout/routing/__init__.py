# SPDX-License-Identifier: Apache-2.0
"""The client's side of a rollout: which release a request goes to, and what came of it."""
