# SPDX-License-Identifier: Apache-2.0
"""The division of a model over ranks: which rank holds which part of which tensor."""
