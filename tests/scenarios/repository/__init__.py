"""Checks of the repository itself: its documents, its style, its dead code, its CI."""
