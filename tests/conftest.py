"""For all tests: random ones are not held to a time.

Two shared cores are sometimes many times slower than a test is used to; what runs for too long is
`pytest-timeout`'s to say.
"""

from hypothesis import settings

settings.register_profile("sparq", deadline=None)
settings.load_profile("sparq")
