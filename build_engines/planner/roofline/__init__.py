# SPDX-License-Identifier: Apache-2.0
"""What a step of an engine costs, from a model's shape and a GPU's datasheet."""
