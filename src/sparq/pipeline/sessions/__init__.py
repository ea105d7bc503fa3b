"""The query `spam_analysis`: sessions of visitors, and findings about them by rules from a file.

In the order in which a click passes through:

    rules.toml  the rules that ship: thresholds, gap of a visit, endings, each with its reason
    rules       a rule file, read and checked
    pack        a partition of messages -> one row per bucket of visitors (before the shuffle)
    judge       clicks of a bucket -> sessions, and the findings about them
    state       the clicks of open sessions of a bucket, in Spark's state; what a batch puts out
    output      the tables `sessions` and `findings`, and their messages on the topic
"""
