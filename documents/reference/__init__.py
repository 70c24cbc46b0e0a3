# SPDX-License-Identifier: Apache-2.0
"""Reference pages that are generated from the code: deployment keys, commands, metrics, errors."""
