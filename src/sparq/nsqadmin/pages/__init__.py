"""nsqadmin's pages: HTML rendered on the server, kept live by one stream per visible tab."""
