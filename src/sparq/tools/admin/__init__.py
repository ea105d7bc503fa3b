"""The program `sparq admin`: topics, channels, nodes and messages of a cluster, for scripts.

1. What a verb does it does at all nsqds that have the topic, which nsqlookupds name, or at those
   that are given. It then says what was done where, and what to do next where it was not.
2. Exit status: 0 when all was done, and all daemons answered; 1 when anything was not done, or a
   daemon could not be reached, also where nothing is changed (`list`, `peek`, `find`). The commands
   that it names do what is missing, and nothing twice. `nsqlookupd` stops listing an nsqd whose
   process has ended: `--expect-nodes` makes that a failure, too.
3. `--dry-run` says what would be done, and does nothing.
4. Verbs that lose messages (`empty`, `delete`, `tombstone`, `finish`, `cancel`, and a `seek` that
   skips some or may drop deferred ones) ask for the name to be typed. Where nobody can type it,
   they need `--yes`.
5. `--json` prints one document, or with `export` one a line. Texts of others lose what a terminal
   would obey.
6. `peek`, `find`, `export`, `seek`, `policies` and what is done to single messages need sparq's
   nsqd: Go's is named among what was not done. All else works with Go's.
7. `sparq admin completion bash` (zsh, fish) prints a script for the shell that completes verbs,
   flags, and the names of topics, channels and nodes, which it asks the cluster for.
"""
