# SPDX-License-Identifier: Apache-2.0
"""The sums over requests that the statistics need, kept from one look to the next."""
