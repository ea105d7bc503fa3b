"""The state of the query `spam_analysis`: open visits and findings of a bucket of visitors.

Pure: bytes of the state and packed rows in, bytes and output rows out. In the order in which
a click passes through:

    pack           a partition of messages -> one row per bucket (runs before the shuffle)
    batch          the input of one bucket in one batch
    intervals      clicks -> visits: intervals without a gap of half an hour
    tiers          the parts of the state in which a bucket keeps its visits, pages and names
    judge          applies the rules of `sparq.pipeline.visits` to visitors and visits
    findings       the findings about each visitor, and which of them have been reported
    folding        replaces old pages of a long visit by a few figures
    recent         judges an ordinary batch
    bucket_visits  judges all visits of a bucket, and drops old ones, at a compaction
    bucket         one batch of one bucket: `apply`; the end of a run: `close`
    processor      the same inside Spark's `transformWithStateInPandas`
"""
