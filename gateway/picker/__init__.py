# SPDX-License-Identifier: Apache-2.0
"""The endpoint picker of a Gateway API inference pool: an Envoy asks it which server a request goes to."""
