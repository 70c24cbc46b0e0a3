# SPDX-License-Identifier: Apache-2.0
"""An engine without a model, for scheduling, echo and faults."""
