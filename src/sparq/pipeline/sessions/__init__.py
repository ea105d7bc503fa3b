"""The query `spam_analysis`: sessions of visitors, and findings about them by rules from a file."""
