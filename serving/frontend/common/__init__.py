# SPDX-License-Identifier: Apache-2.0
"""What both frontends need: limits, what they are told, and who has left."""
