# SPDX-License-Identifier: Apache-2.0
"""`trireme plan`: the memory and speed of a model on GPUs that are not here, from the model's config alone."""
