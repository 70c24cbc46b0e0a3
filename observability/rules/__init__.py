# SPDX-License-Identifier: Apache-2.0
"""Recording and alert rules, and the expressions in them."""
