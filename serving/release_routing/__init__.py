# SPDX-License-Identifier: Apache-2.0
"""The releases that a text model serves beside its own: those that requests name, and those that a split gives them."""
