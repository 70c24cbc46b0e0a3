# SPDX-License-Identifier: Apache-2.0
"""What talks to a running Triton from outside: the streaming client and the tools that are built on it."""
