"""HTTP requests that cross modules: searches, odd requests, and answers that aiohttp makes."""
