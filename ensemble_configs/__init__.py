# SPDX-License-Identifier: Apache-2.0
"""Deployments as typed data, and the compiler from a deployment to every file that Triton reads."""
