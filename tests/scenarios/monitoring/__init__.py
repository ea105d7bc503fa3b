"""What an operator watches: logs, metrics and the dashboard."""
