"""`sparq pipeline` that merges files after each batch, so that a kill can also interrupt a merge.

    python -m tests.scenarios.pipeline.delta_program [without-transactions] FLAGS

The first word is the control: a repeated batch is not recognised.
"""

import sys

from proofs.without_transactions import without_transactions

from sparq.pipeline import command, maintenance

if __name__ == "__main__":
    maintenance.SETTLED_S = maintenance.CHECK_S = 0
    if sys.argv[1] == "without-transactions":
        del sys.argv[1]
        without_transactions()
    sys.exit(command.main())
