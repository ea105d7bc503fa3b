"""The state of the query `spam_analysis`: open visits and findings of a bucket of visitors.

Pure: bytes of the state and packed rows in, bytes and output rows out. In the order of a click:

    pack        a partition of messages -> one row a bucket (runs in front of the shuffle)
    batch       what one bucket is given in one batch
    intervals   clicks -> visits: intervals without a gap of half an hour
    tiers       the parts of the state in which a bucket keeps its visits, pages and names
    judge       the rules of `sparq.pipeline.visits`, asked about visitors and about visits
    findings    what has been found about whom, and what of it is told
    folding     old pages of a long visit as a few figures
    recent      what an ordinary batch can judge; `whole`: what a compaction judges, and drops
    bucket      one batch of one bucket: `apply`; the end of a run: `close`
    processor   the same inside Spark's `transformWithStateInPandas`
"""
