# SPDX-License-Identifier: Apache-2.0
"""An engine over several nodes: leader, workers, and their messages."""
