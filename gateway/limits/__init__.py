# SPDX-License-Identifier: Apache-2.0
"""The limits of keys: requests and tokens a minute, and streams at a time."""
