# SPDX-License-Identifier: Apache-2.0
"""The cost of an engine's step, from a model's shape and a GPU's datasheet."""
