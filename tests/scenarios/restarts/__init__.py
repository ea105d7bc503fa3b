"""Tests of starts, stops, kills and power cuts, and of the data that survives them."""
