# SPDX-License-Identifier: Apache-2.0
"""The set-up of the project on a machine: standard library only, importable by any Python from 3.9 on."""
