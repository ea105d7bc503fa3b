"""Starts, stops, kills and power cuts: what survives them."""
