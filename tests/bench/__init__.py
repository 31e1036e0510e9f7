"""What the lift costs: `python -m tests.bench` compares it with plain JAX and Equinox in one run."""
