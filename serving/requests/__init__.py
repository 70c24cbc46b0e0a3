# SPDX-License-Identifier: Apache-2.0
"""From the tensors of a request to typed values; what cannot be served is refused here."""
