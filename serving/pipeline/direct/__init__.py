# SPDX-License-Identifier: Apache-2.0
"""The way of responses from a model to the frontend of its client, past Triton."""
