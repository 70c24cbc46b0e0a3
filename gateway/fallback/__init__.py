# SPDX-License-Identifier: Apache-2.0
"""What answers where a model cannot: another model of the deployment, or an API elsewhere."""
