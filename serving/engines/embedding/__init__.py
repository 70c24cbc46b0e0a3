# SPDX-License-Identifier: Apache-2.0
"""Embedding models on OpenVINO: their folders, and how token ids become vectors."""
