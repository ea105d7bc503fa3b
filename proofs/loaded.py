"""nsqd that has imported all its modules before it looks at its data: for proofs whose faults are
counted in system calls, and are to hit its files, not those of Python's libraries.
"""

import pkgutil
import sys
from importlib import import_module

import uvloop  # noqa: F401 - as all the others: nsqd imports it later

import sparq.daemon
import sparq.nsqd
from sparq.nsqd.main import main

if __name__ == "__main__":
    for package in (sparq.daemon, sparq.nsqd):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    sys.exit(main())
