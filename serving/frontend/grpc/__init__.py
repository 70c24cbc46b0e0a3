# SPDX-License-Identifier: Apache-2.0
"""The frontend of gRPC: a relay that reads what clients send."""
