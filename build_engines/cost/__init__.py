# SPDX-License-Identifier: Apache-2.0
"""The cost of serving: from GPU prices, throughput and traffic to a million tokens, a tenant, a lever, a break-even."""
