"""Tests of the state of the query `spam_analysis`, held to the plain rules (`plain.py`)."""
