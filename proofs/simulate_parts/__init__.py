"""The parts of the simulation: weather (chances), links (network), actors, truth, world (broker).

A simulated run uses one thread and makes all random choices from one seed, so the seed of a failed
run repeats it.
"""
