# SPDX-License-Identifier: Apache-2.0
"""One engine over several nodes: leader, workers, and their messages."""
