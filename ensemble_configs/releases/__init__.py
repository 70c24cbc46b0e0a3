# SPDX-License-Identifier: Apache-2.0
"""What a built release is, sealed and checked, and whether a machine can serve it."""
