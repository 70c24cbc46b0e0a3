# SPDX-License-Identifier: Apache-2.0
"""The parts that both frontends need: limits, messages from the parent, and clients that have left."""
