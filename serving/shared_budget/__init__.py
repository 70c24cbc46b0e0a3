# SPDX-License-Identifier: Apache-2.0
"""What the models of one server share of a device: a ledger in memory, and who holds what of it."""
