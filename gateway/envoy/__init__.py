# SPDX-License-Identifier: Apache-2.0
"""The configuration of an Envoy before several gateways, or several Tritons."""
