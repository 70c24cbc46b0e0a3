# SPDX-License-Identifier: Apache-2.0
"""Built releases: their seal, their checks, and whether a machine can serve them."""
