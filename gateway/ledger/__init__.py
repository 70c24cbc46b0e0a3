# SPDX-License-Identifier: Apache-2.0
"""The ledger: a row for each request with its caller, its model, its tokens, its times and its cost."""
