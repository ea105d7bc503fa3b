"""What happens inside the namespace of power.py: disk images, load, cuts, and what is found."""
