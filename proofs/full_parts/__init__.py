"""Parts of the proof for full disks: see `proofs.full`."""
