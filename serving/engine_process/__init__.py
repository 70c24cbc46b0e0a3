# SPDX-License-Identifier: Apache-2.0
"""The engine in a process of its own: its messages, client, loop and wrappers."""
