"""What proofs/hostile.py is made of: inputs, targets, and the worker that brings them together."""
