"""Parts of the proof on full disks: see `proofs.full`."""
