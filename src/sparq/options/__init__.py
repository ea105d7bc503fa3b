"""How options are declared, read and checked: flags, keys of files, settings of the client."""
