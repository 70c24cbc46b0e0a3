# SPDX-License-Identifier: Apache-2.0
"""The seam between Trireme and an engine: requests, tokens, capabilities, limits."""
