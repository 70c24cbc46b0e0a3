# SPDX-License-Identifier: Apache-2.0
"""`trireme bench`: load on a running server, what it did, and a report that says how sure one may be."""
