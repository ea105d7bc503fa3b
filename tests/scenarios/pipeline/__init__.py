"""The clicks pipeline as its user runs it: its commands, its report, its figures, its mistakes."""
