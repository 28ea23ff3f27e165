"""The GPU kernels, in Triton. Importing any module here needs Triton; nothing else in the package does."""
