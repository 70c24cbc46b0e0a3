# SPDX-License-Identifier: Apache-2.0
"""The shares of a device that the models of one server hold: a ledger in memory, and what each member holds of it."""
