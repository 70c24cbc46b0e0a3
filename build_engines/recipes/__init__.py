# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint becomes a release, as typed data beside the recipes that come with us."""
