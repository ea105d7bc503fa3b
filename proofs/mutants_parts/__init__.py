"""Parts of `proofs/mutants.py`: which test reaches which line, changes to code, and their tests."""
