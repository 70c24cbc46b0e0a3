# SPDX-License-Identifier: Apache-2.0
"""Access to a gateway: its API keys, where they are kept, and the check of each request."""
