# SPDX-License-Identifier: Apache-2.0
"""The split of requests among releases, and how those requests ended: what a server and a rollout tell each other."""
