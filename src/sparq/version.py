"""sparq's version, as in pyproject.toml. Asking the installed package took 43 ms of each start."""

__version__ = "0.1.0"
