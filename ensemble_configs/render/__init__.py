# SPDX-License-Identifier: Apache-2.0
"""The renderer from a deployment to every file that Triton, Kubernetes and clients read."""
