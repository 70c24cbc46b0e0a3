# SPDX-License-Identifier: Apache-2.0
"""`trireme prove`: what is only written from facts here, tried on a real GPU, with one JSON as the result."""
