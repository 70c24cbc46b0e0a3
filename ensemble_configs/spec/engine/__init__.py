# SPDX-License-Identifier: Apache-2.0
"""What a deployment may say of an engine: a spec for each provider, and the union of them."""
