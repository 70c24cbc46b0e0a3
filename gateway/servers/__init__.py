# SPDX-License-Identifier: Apache-2.0
"""The servers behind a gateway: which one a request goes to, and which take none for now."""
