"""The command-line tools, one module each; only nsq_check imports server code: `sparq.log`."""
