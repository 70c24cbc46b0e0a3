# SPDX-License-Identifier: Apache-2.0
"""What sets the project up on a machine: standard library only, importable by any Python from 3.9 on."""
