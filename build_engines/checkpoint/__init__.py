# SPDX-License-Identifier: Apache-2.0
"""The model in a checkpoint, as its files describe it."""
