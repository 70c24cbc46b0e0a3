# SPDX-License-Identifier: Apache-2.0
"""What a deployment file may say, as typed data, and what two parts of it cannot say together."""
