# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which part of which tensor."""
