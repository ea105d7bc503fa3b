"""Tests of HTTP across modules: searches, unusual requests, and responses that aiohttp makes."""
