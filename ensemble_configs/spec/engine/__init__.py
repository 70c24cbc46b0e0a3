# SPDX-License-Identifier: Apache-2.0
"""The fields of a deployment about its engine: a spec for each provider, and the union of them."""
