# SPDX-License-Identifier: Apache-2.0
"""The engine on OpenVINO, for CPUs."""
