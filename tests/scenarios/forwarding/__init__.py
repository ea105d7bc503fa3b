"""nsq_to_http and nsq_to_nsq as programs: each flag has its effect, and failures lose nothing."""
