# SPDX-License-Identifier: Apache-2.0
"""The planner's constants and estimators beside published measurements."""
