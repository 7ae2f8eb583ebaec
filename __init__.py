"""Makes the repository root look like a package, as `openenv push` requires. Import `kernel_env` instead."""
