# SPDX-License-Identifier: Apache-2.0
"""Requests as typed values, read from their tensors; a request that cannot be served is refused here."""
