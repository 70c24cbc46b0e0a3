# SPDX-License-Identifier: Apache-2.0
"""The commands of `trireme bench` that belong to the built-in client."""
