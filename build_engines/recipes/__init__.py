# SPDX-License-Identifier: Apache-2.0
"""Recipes: how a checkpoint becomes a release, as typed data, beside the recipes that come with us."""
