# SPDX-License-Identifier: Apache-2.0
"""Changes of the served releases while the server runs: releases come, are promoted and go."""
