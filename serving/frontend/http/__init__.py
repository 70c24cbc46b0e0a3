# SPDX-License-Identifier: Apache-2.0
"""The frontend of HTTP: requests are read here and sent on over gRPC."""
