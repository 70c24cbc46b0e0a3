# SPDX-License-Identifier: Apache-2.0
"""`trireme plan`: what a model needs and how fast it will be, on GPUs that are not here, from its config alone."""
