# SPDX-License-Identifier: Apache-2.0
"""`trireme prove`: trials on a real GPU of what is only written from facts here, with one JSON as the result."""
