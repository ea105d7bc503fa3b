"""The parts of power.py that run inside the namespace: disk images, load, cuts and checks."""
