# SPDX-License-Identifier: Apache-2.0
"""The stub's side of an embedding model: requests of texts or token ids, joined and answered with vectors."""
