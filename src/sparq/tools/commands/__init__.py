"""The command line of each tool: light, so that help, version and mistakes come at once."""
