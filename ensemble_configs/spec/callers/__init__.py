# SPDX-License-Identifier: Apache-2.0
"""The callers of a gateway as typed data: whose tokens they may bring."""
