"""The program `sparq admin`: manages a cluster's topics, channels, nodes and messages, for scripts.

1. A verb acts on all nsqds that have the topic according to nsqlookupd, or on the nsqds given by
   address. It then reports what was done where, and what to do next where it was not done.
2. Exit status: 0 if everything was done and all daemons answered; 1 if anything was not done or a
   daemon could not be reached, also for verbs that change nothing (`list`, `peek`, `find`). The
   report lists commands that do only what is missing. An nsqd whose process has ended is no longer
   listed by nsqlookupd, so it is not missed: `--expect-nodes=N` fails if fewer than N are found.
3. `--dry-run` shows what would be done, and does nothing.
4. Verbs that lose messages (`empty`, `delete`, `tombstone`, `finish`, `cancel`, and a `seek` that
   skips messages) ask you to type the name. Without a terminal they need `--yes`. 1.5 s after
   `delete`, `tombstone` and `move`, the nsqds are asked whether they have the topic or channel
   again. If one has, the verb fails and names the clients that are attached to it there.
5. `--json` prints one document, or with `export` one per line. Control characters that a terminal
   would interpret are removed from text that others sent.
6. `peek`, `find`, `export`, `seek`, `policies` and the verbs for single messages need sparq's nsqd;
   a Go nsqd is reported among those where nothing was done. All other verbs work with Go's nsqd.
7. `sparq admin completion bash` (zsh, fish) prints a script for the shell that completes commands,
   verbs and flags of all of sparq's programs, and the names of topics, channels and nodes, which it
   asks the cluster for.
"""
