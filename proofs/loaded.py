"""nsqd that imports all its modules before it opens its data.

For proofs that count system calls: their faults must hit nsqd's data files, not the files of Python
modules.
"""

import pkgutil
import sys
from importlib import import_module

import uvloop  # noqa: F401 - imported early, like the modules below

import sparq.daemon
import sparq.nsqd
from sparq.nsqd.main import main

if __name__ == "__main__":
    for package in (sparq.daemon, sparq.nsqd):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    sys.exit(main())
