# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of the project: who may ask them, by which certificate, how much they read, and their threads."""
