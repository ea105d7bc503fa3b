"""The parts of proofs/hostile.py: inputs, targets, and the worker that runs them."""
