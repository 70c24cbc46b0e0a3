# SPDX-License-Identifier: Apache-2.0
"""From a deployment to every file that Triton, Kubernetes and clients read."""
