"""nsqadmin's pages: HTML made on the server, kept live by one stream for each visible tab."""
