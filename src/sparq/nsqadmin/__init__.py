"""nsqadmin: shows and manages a cluster of nsqds, in a browser and over JSON APIs.

See docs/nsqadmin.md.
"""
