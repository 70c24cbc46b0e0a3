# SPDX-License-Identifier: Apache-2.0
"""What single requests lived through: spans to an OpenTelemetry collector, and lines of the log.

`docs/tracing.md` says what is in them.
"""
