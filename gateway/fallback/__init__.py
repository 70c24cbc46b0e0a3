# SPDX-License-Identifier: Apache-2.0
"""Answers where a model cannot give them: by another model of the deployment, or by an API elsewhere."""
