# SPDX-License-Identifier: Apache-2.0
"""The KV cache events of a server's engines on their way out: what is held, and who is told, over ZeroMQ and HTTP."""
