# SPDX-License-Identifier: Apache-2.0
"""Whether a release is as good as the one that it was made from: the quality gate."""
