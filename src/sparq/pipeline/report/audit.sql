SELECT 'archived' AS figure, count(*) AS value FROM clicks
UNION ALL SELECT 'distinct', count(DISTINCT id) FROM clicks
UNION ALL SELECT 'rejected', count(*) FROM rejected
UNION ALL SELECT 'rejected_distinct', count(DISTINCT id) FROM rejected
UNION ALL SELECT 'distinct_in_all', count(DISTINCT id) FROM (
    SELECT id FROM clicks UNION ALL SELECT id FROM rejected
) AS messages
UNION ALL SELECT 'minute_clicks', coalesce(sum(clicks), 0) FROM minutes
UNION ALL SELECT 'with_page', count(page) FROM clicks
UNION ALL SELECT 'page_clicks', coalesce(sum(clicks), 0) FROM pages
UNION ALL SELECT 'with_address', count(address) FROM clicks
UNION ALL SELECT 'session_clicks', coalesce(sum(clicks), 0) FROM sessions
UNION ALL SELECT 'repeated_findings', count(*) FROM (
    SELECT session FROM findings GROUP BY session, reason, revision HAVING count(*) > 1
) AS repeated
