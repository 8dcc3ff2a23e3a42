"""Side-by-side benchmarks: `python -m benchmarks quick|bench|full`."""
