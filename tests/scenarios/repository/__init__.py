"""Checks of the repository itself: documents, style, dead code and CI."""
