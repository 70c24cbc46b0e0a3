# SPDX-License-Identifier: Apache-2.0
"""The checks of a release against this machine, which find what stands in its way before it is loaded."""
