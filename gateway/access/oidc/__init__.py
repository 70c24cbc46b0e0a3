# SPDX-License-Identifier: Apache-2.0
"""Callers by the tokens of an OpenID Connect provider: signed JWTs, checked by the keys that the provider publishes."""
