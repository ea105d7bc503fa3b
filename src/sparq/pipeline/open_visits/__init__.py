"""The state of the query `spam_analysis`: open visits and findings of a bucket of visitors.

Pure: bytes of the state and packed rows in, bytes and output rows out. In the order of a click:

    pack        a partition of clicks -> one row a bucket (runs in front of the shuffle)
    arrivals    what one bucket is given in one batch
    intervals   clicks -> visits: intervals without a gap of half an hour
    hot, base   the tiers in which a bucket keeps its visits, pages and names
    judge       the rules of `sparq.pipeline.visits`, asked about visitors and about visits
    findings    what has been found about whom, and what of it is told
    folding     old pages of a long visit as a few figures
    bucket      one batch of one bucket: `apply`; the end of a run: `close`
    processor   the same inside Spark's `transformWithStateInPandas`
"""
